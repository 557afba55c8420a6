"""The revision that a current database has."""

from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory

from control.edges.sql import schema_migrations


def test_latest_is_the_last_migration() -> None:
    settings = Config()
    settings.set_main_option("script_location", str(Path(schema_migrations.__file__).parent / "migrations"))
    assert ScriptDirectory.from_config(settings).get_current_head() == schema_migrations.LATEST
