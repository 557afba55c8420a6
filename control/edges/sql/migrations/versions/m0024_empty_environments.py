"""Environments that point to no deployment yet.

A control process of the version before answers a list that holds one with 500, until it is replaced.
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    _set_nullable(True)


def downgrade() -> None:
    op.execute("DELETE FROM environments WHERE deployment_id IS NULL")
    _set_nullable(False)


def _set_nullable(is_nullable: bool) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("environments", "deployment_id", nullable=is_nullable)
        return
    # SQLite cannot change a column, so the table is written anew.
    op.drop_index("ix_environments_deployment_id", "environments")
    op.rename_table("environments", "old_environments")
    op.create_table(
        "environments",
        sa.Column("model_id", Id, nullable=False),
        sa.Column("name", Id, nullable=False),
        sa.Column("deployment_id", Id, nullable=is_nullable),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("model_id", "name", name="pk_environments"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], "fk_environments_model_id"),
        sa.ForeignKeyConstraint(["deployment_id"], ["deployments.id"], "fk_environments_deployment_id"),
    )
    op.execute(
        "INSERT INTO environments (model_id, name, deployment_id, created_at_ms, updated_at_ms)"
        " SELECT model_id, name, deployment_id, created_at_ms, updated_at_ms FROM old_environments"
    )
    op.drop_table("old_environments")
    op.create_index("ix_environments_deployment_id", "environments", ["deployment_id"])
