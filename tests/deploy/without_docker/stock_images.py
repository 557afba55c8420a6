"""Runs Debian's packages for compose.yaml's stock images: their users, directories and first steps."""

from pathlib import Path

from tests.deploy.without_docker.compose import Service
from tests.deploy.without_docker.containers import Programs
from tests.deploy.without_docker.sandbox import PATH, user_of

WITHOUT_A_PACKAGE = frozenset(("grafana",))
"""Services whose programs Debian does not have."""
_POSTGRES = r"""
data=/var/lib/postgresql/data
if [ ! -s $data/PG_VERSION ]; then
  umask 077
  printf %s "$POSTGRES_PASSWORD" > /tmp/password
  initdb --pgdata=$data --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 --no-sync
  rm /tmp/password
  echo 'host all all all scram-sha-256' >> $data/pg_hba.conf
  echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D $data postgres
fi
exec postgres -D $data -k /tmp -c listen_addresses='*'
"""
_HAPROXY = ["haproxy", "-W", "-db", "-n", "2000", "-f", "/usr/local/etc/haproxy/haproxy.cfg"]
"""HAProxy with fewer connections than in production: a container may not raise its bound on open files."""


def programs_of(service: Service, root: Path) -> Programs:
    """Return what the service's stock image does, by the packages installed in `root`."""
    match service.image.rpartition("/")[2].partition(":")[0]:
        case "postgres":
            return Programs(root, user_of(root, "postgres"), ["sh", "-euc", _POSTGRES], _postgres_environment(root))
        case "redis":
            return Programs(root, user_of(root, service.user), service.command)
        case "haproxy":
            return Programs(root, user_of(root, "haproxy"), _HAPROXY)
        case "prometheus":
            return Programs(root, user_of(root, "nobody"), ["prometheus", *service.command])
        case "alertmanager":
            return Programs(root, user_of(root, "nobody"), ["prometheus-alertmanager", *service.command])
    raise LookupError(f"no package runs {service.image} of {service.name}; see {__file__}")


def _postgres_environment(root: Path) -> dict[str, str]:
    (programs,) = (path for path in (root / "usr/lib/postgresql").iterdir())
    return {"PATH": f"/usr/lib/postgresql/{programs.name}/bin:{PATH}"}
