"""The revision that a current database has."""

from pathlib import Path

from alembic.config import Config
from alembic.script import ScriptDirectory

from control.edges.sql.migrations import migrate


def test_latest_is_the_last_migration() -> None:
    settings = Config()
    settings.set_main_option("script_location", str(Path(migrate.__file__).parent))
    assert ScriptDirectory.from_config(settings).get_current_head() == migrate.LATEST
