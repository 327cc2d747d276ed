"""Memory of the host: the tightest of all limits that hold, whatever the files of the system look like."""

from pathlib import Path

import pytest

from trimtab import memory

GB = 1_000_000_000


@pytest.fixture
def machine(tmp_path):
    """A system of files that a test writes; a machine of which 64 GB are available."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8", "surrogateescape"))
        return tmp_path

    write({"proc/meminfo": f"MemTotal:  99 kB\nMemFree:   1 kB\nMemAvailable:   {64 * GB // 1024} kB\n"})
    return write


def group(path, *, limit, used, cache=0):
    return {
        f"sys/fs/cgroup/{path}/memory.max": f"{limit}\n",
        f"sys/fs/cgroup/{path}/memory.current": f"{used}\n",
        f"sys/fs/cgroup/{path}/memory.stat": f"anon 5\ninactive_file {cache}\nactive_file 7\n",
    }


def old_group(path, *, limit, used, cache=0):
    return {
        f"sys/fs/cgroup/memory/{path}/memory.limit_in_bytes": f"{limit}\n",
        f"sys/fs/cgroup/memory/{path}/memory.usage_in_bytes": f"{used}\n",
        f"sys/fs/cgroup/memory/{path}/memory.stat": f"cache 5\ntotal_inactive_file {cache}\n",
    }


def test_without_groups_it_is_what_the_machine_says(machine):
    assert memory.available_bytes(root=machine({})) == 64 * GB // 1024 * 1024


def test_the_limit_of_the_own_group_holds_and_its_cache_is_available(machine):
    root = machine({"proc/self/cgroup": "0::/job/step\n", **group("job/step", limit=8 * GB, used=6 * GB, cache=GB)})

    assert memory.available_bytes(root=root) == 3 * GB


def test_the_limit_of_a_group_above_holds_too(machine):
    root = machine(
        {
            "proc/self/cgroup": "0::/job/step\n",
            **group("job/step", limit="max", used=GB),
            **group("job", limit=4 * GB, used=3 * GB),
        }
    )

    assert memory.available_bytes(root=root) == GB


def test_inside_of_a_container_the_limit_is_at_the_top(machine):
    # given a path of the host's, which is not there
    root = machine({"proc/self/cgroup": "0::/docker/abc\n", **group("", limit=2 * GB, used=GB)})

    assert memory.available_bytes(root=root) == GB


def test_version_1_is_known(machine):
    root = machine(
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/slurm/job:7\n0::/\n",
            **old_group("slurm/job:7", limit=8 * GB, used=6 * GB, cache=GB),
            **old_group("slurm", limit=9223372036854771712, used=6 * GB),
        }
    )

    assert memory.available_bytes(root=root) == 3 * GB


def test_more_use_than_the_limit_is_none_left(machine):
    root = machine({"proc/self/cgroup": "0::/\n", **group("", limit=GB, used=2 * GB)})

    assert memory.available_bytes(root=root) == 0


@pytest.mark.parametrize(
    "files",
    [
        {"proc/meminfo": ""},
        {"proc/meminfo": "MemAvailable:\nMemAvailable: many kB\n"},
        {"proc/meminfo": "MemAvailable: 99999999999999999999999999999 kB"},
        {"proc/meminfo": "\udc80\udcff", "proc/self/cgroup": "0::/../../etc\n4\n::\n"},
    ],
    ids=["empty", "words", "too large", "bytes"],
)
def test_where_nothing_tells_it_it_is_not_known(machine, files):
    assert memory.available_bytes(root=machine(files)) is None


def test_elsewhere_it_is_not_known(tmp_path):
    assert memory.available_bytes(root=tmp_path) is None


def test_a_group_is_not_looked_for_outside_of_its_folder(machine):
    root = machine(
        {
            "proc/self/cgroup": "0::/../../../proc\n",
            "proc/memory.max": "5\n",
            "proc/memory.current": "1\n",
            **group("", limit="max", used=1),
        }
    )

    assert memory.available_bytes(root=root) == 64 * GB // 1024 * 1024


def test_a_look_before_a_save_says_what_is_needed(machine):
    look = memory.look(1_700_000_000, step=500, root=machine({}))

    assert (look.step, look.host_needed_bytes) == (500, 1_700_000_000)
    assert look.host_available_bytes == 64 * GB // 1024 * 1024


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="only Linux tells it")
def test_this_machine_has_some():
    available = memory.available_bytes()
    assert available is not None
    assert 0 < available < 1 << 50
