"""Queries on `idempotent_answers`. A row is claimed first in the transaction that creates, and filled last in it."""

from collections.abc import Callable, Sequence

from sqlalchemy import delete, select, text, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from control.edges.sql.database import LOCK_NOT_AVAILABLE, sqlstate_of
from control.edges.sql.idempotency.tables import idempotent_answers
from control.edges.sql.store import Connection, WriteTx
from control.errors import RequestRunningError

_answers = idempotent_answers.c
_SET_TIMEOUT = text("SELECT set_config('lock_timeout', :value, true)")
_RESET_TIMEOUT = text("SET LOCAL lock_timeout TO DEFAULT")
_PAGE = 500


async def find_answer(conn: Connection, id: str, now_ms: int) -> str | None:
    """The answer, sealed."""
    query = select(_answers.answer).where(_answers.id == id, _answers.expires_at_ms > now_ms)
    answer: str | None = (await conn.execute(query)).scalar()
    return answer


async def claim(tx: WriteTx, id: str, expires_at_ms: int, wait_ms: int) -> bool:
    """Claim the id for this transaction; False if another has committed an answer that has not expired.

    Waits at most `wait_ms` for a transaction that holds it, then raises `RequestRunningError`. Call it first: whoever
    waits must hold no lock. On SQLite a writer is alone, so there is nothing to wait for.
    """
    is_postgres = tx.conn.dialect.name == "postgresql"
    new = (postgresql if is_postgres else sqlite).insert(idempotent_answers)
    row = {"answer": "", "expires_at_ms": expires_at_ms}
    statement = new.values(id=id, **row).on_conflict_do_update(
        index_elements=["id"],
        set_={name: new.excluded[name] for name in row},
        where=_answers.expires_at_ms <= tx.now_ms,
    )
    if is_postgres:
        await tx.conn.execute(_SET_TIMEOUT, {"value": f"{max(1, wait_ms)}ms"})
    try:
        claimed = (await tx.conn.execute(statement.returning(_answers.id))).one_or_none()
    except DBAPIError as error:
        if sqlstate_of(error) == LOCK_NOT_AVAILABLE:
            raise RequestRunningError from None
        raise
    if is_postgres:
        await tx.conn.execute(_RESET_TIMEOUT)
    return claimed is not None


async def fill(tx: WriteTx, id: str, answer: str) -> None:
    await tx.conn.execute(update(idempotent_answers).where(_answers.id == id).values(answer=answer))


async def reseal_answers(tx: WriteTx, reseal: Callable[[str, str], str | None]) -> None:
    """Replace each answer by what `reseal` makes of its id and itself; None leaves it."""
    last = ""
    while page := await _page_after(tx, last):
        for id, answer in page:
            resealed = reseal(id, answer)
            if resealed is not None:
                await fill(tx, id, resealed)
        last = page[-1][0]


async def _page_after(tx: WriteTx, last: str) -> Sequence[tuple[str, str]]:
    live = select(_answers.id, _answers.answer).where(_answers.id > last, _answers.expires_at_ms > tx.now_ms)
    rows = await tx.conn.execute(live.order_by(_answers.id).limit(_PAGE).with_for_update())
    return [(id, answer) for id, answer in rows]


async def delete_expired_answers(tx: WriteTx, before_ms: int, limit: int) -> int:
    """Delete at most `limit` answers that expired before that time. Returns their number."""
    ended = select(_answers.id).where(_answers.expires_at_ms <= before_ms).limit(limit)
    return (await tx.conn.execute(delete(idempotent_answers).where(_answers.id.in_(ended)))).rowcount
