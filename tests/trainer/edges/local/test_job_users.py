"""Checks which user a job gets."""

import pytest

from trainer.backend import BackendAwayError
from trainer.edges.local.job_users import JobUsers, Owner


def test_one_user_is_that_of_every_job() -> None:
    users = JobUsers(range(500, 501), gid=7)
    assert users.choose({500}, {500}) == Owner(500, 7)
    users.check_number(100)


def test_each_running_job_has_a_user_of_its_own_and_the_group_of_its_number() -> None:
    users = JobUsers(range(2000, 2010))
    running = set[int]()
    for _ in users.ids:
        owner = users.choose(running, ())
        assert owner.uid == owner.gid
        assert owner.uid in users.ids
        assert owner.uid not in running
        running.add(owner.uid)
    assert running == set(users.ids)


def test_a_job_gets_the_user_of_files_that_are_still_there_only_if_no_other_is_left() -> None:
    users = JobUsers(range(2000, 2003))
    assert users.choose({2000}, {2000, 2002}).uid == 2001
    assert users.choose({2000}, {2000, 2001, 2002}).uid in (2001, 2002)


def test_fewer_users_than_jobs_at_a_time_are_refused() -> None:
    JobUsers(range(2000, 2008)).check_number(8)
    with pytest.raises(BackendAwayError, match="TOLLGATE_TRAINING_USER: 8 user ids for up to 9 jobs"):
        JobUsers(range(2000, 2008)).check_number(9)


@pytest.mark.parametrize("setting", ["3000-2999", "2000-4294967295", "no-such-user", "1-5", ""])
def test_what_names_no_user_is_refused_with_the_setting(setting: str) -> None:
    with pytest.raises(BackendAwayError, match="TOLLGATE_TRAINING_USER"):
        JobUsers.of(setting)


def test_a_range_with_the_id_of_a_user_of_this_machine_is_refused() -> None:
    with pytest.raises(BackendAwayError, match="nobody has an id of this range"):
        JobUsers.of("65000-66000")
