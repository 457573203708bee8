"""What is preloaded: names that a person gives, or what workers have recorded."""

from pathlib import Path

from support.preload.room import NOTED, Room, is_forked
from support.processes.world import OBEDIENT, World

IMPORTING = "import noted\nimport json.tool\nimport email.mime.text\nimport runpy\n"


def importing(world: World) -> str:
    """Return a script that imports the noted module, and much more, before it obeys."""
    path = Path(world.folder, "importing.py")
    path.write_text(f"{IMPORTING}runpy.run_path({OBEDIENT!r}, run_name='__main__')\n")
    return str(path)


def test_auto_imports_what_workers_have_imported(world: World) -> None:
    """The first round is cold, and its workers show nothing of the recording; the next is not."""
    room = Room(world, nproc=1, script=(importing(world),), preload=("--preload=auto",))
    (cold,) = room.begin_round()
    server = room.await_ready()

    assert not is_forked(cold.pid)
    assert cold.env["PYTHONPATH"] == str(world.folder)
    assert not [name for name in cold.env if name.startswith("RALLYPOINT_PRELOAD")]
    assert {cold.pid, server} <= set(room.importers())
    room.end_round()
    (worker,) = room.begin_forked_round()
    assert worker.pid not in room.importers()


def test_auto_does_not_import_the_main_module(world: World) -> None:
    """A module that is run with -m is looked for like those that it imports."""
    module = Path(world.folder, "trained.py")
    module.write_text("import noted\nimport runpy\nprint('ran as', __name__, flush=True)\n")
    with module.open("a") as file:
        file.write(f"runpy.run_path({OBEDIENT!r}, run_name='__main__')\n")
    room = Room(world, nproc=1, script=("-m", "trained"), preload=("--preload=auto",))
    room.begin_round()
    room.await_ready()
    room.end_round()
    room.begin_forked_round()

    lines = room.agent.stdout().splitlines()
    assert {line for line in lines if "ran as" in line} == {"ran as __main__"}
    assert "found in sys.modules" not in room.agent.stderr()


def test_calls_follow_the_imports(world: World) -> None:
    """--preload-call alone imports the function's module, and calls it once."""
    text = f"""
import os
def note():
    with open(os.path.join(os.path.dirname(__file__), "{NOTED}"), "a") as file:
        file.write(f"{{os.getpid()}} called\\n")
"""
    room = Room(world, nproc=1, text=text, preload=("--preload-call=noted:note",))
    server = room.await_ready()
    room.begin_forked_round()

    assert room.importers() == {server: "called"}


def test_spare_takes_over_with_its_forkserver(world: World) -> None:
    """It makes it while the round runs elsewhere."""
    room = Room(world, nproc=1)
    room.begin_round()
    spare = room.start("spare", "--preload=noted")
    spare.wait_event("preloaded")
    before = len(world.mailbox.started())
    room.end_round()
    world.mailbox.wait("started", before + 2)
    fresh = world.mailbox.started()[before:]

    assert {worker.node for worker in fresh} == {"a", "spare"}
    assert all(is_forked(worker.pid) for worker in fresh)
