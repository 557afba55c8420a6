"""Uploads of training jobs: their parts, and the jobs that hold them. The version before does not know the tables."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"

Id = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "training_uploads",
        sa.Column("id", Id, nullable=False),
        sa.Column("workspace_id", Id, nullable=False),
        sa.Column("key", Id, nullable=False),
        sa.Column("status", Id, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_training_uploads"),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], "fk_training_uploads_workspace_id"),
    )
    op.create_index("ix_training_uploads_workspace_id_key", "training_uploads", ["workspace_id", "key"])
    op.create_index("ix_training_uploads_created_at_ms", "training_uploads", ["created_at_ms"])
    op.create_table(
        "training_upload_parts",
        sa.Column("id", Id, nullable=False),
        sa.Column("upload_id", Id, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("sha256", Id, nullable=True),
        sa.Column("etag", Id, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_training_upload_parts"),
        sa.ForeignKeyConstraint(["upload_id"], ["training_uploads.id"], "fk_training_upload_parts_upload_id"),
    )
    op.create_index("ix_training_upload_parts_upload_id", "training_upload_parts", ["upload_id"])
    op.create_table(
        "training_job_artifacts",
        sa.Column("job_id", Id, nullable=False),
        sa.Column("upload_id", Id, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "upload_id", name="pk_training_job_artifacts"),
        sa.ForeignKeyConstraint(["job_id"], ["training_jobs.id"], "fk_training_job_artifacts_job_id"),
        sa.ForeignKeyConstraint(["upload_id"], ["training_uploads.id"], "fk_training_job_artifacts_upload_id"),
    )
    op.create_index("ix_training_job_artifacts_upload_id", "training_job_artifacts", ["upload_id"])


def downgrade() -> None:
    op.drop_table("training_job_artifacts")
    op.drop_table("training_upload_parts")
    op.drop_table("training_uploads")
