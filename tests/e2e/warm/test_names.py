"""What standbys import: names that a person gives, or what workers have recorded."""

from pathlib import Path

from support.processes.world import OBEDIENT, World
from support.warm.standbys import NOTED, TRIES, Room

IMPORTING = "import noted\nimport json.tool\nimport email.mime.text\nimport runpy\n"


def importing(world: World) -> str:
    """Return a script that imports the noted module, and much more, before it obeys."""
    path = Path(world.folder, "importing.py")
    path.write_text(f"{IMPORTING}runpy.run_path({OBEDIENT!r}, run_name='__main__')\n")
    return str(path)


def test_auto_imports_what_workers_have_imported(world: World) -> None:
    """The first round is cold; its workers show nothing of the recording."""
    room = Room(world, nproc=1, script=(importing(world),), warm=("--warm=auto",))
    (cold,) = room.begin_round()
    room.await_ready(1)

    assert room.agent.events("warm_started") == []
    assert cold.env["PYTHONPATH"] == str(world.folder)
    assert not [name for name in cold.env if name.startswith("RALLYPOINT_STANDBY")]
    (standby,) = [pid for pid in room.standbys() if pid != cold.pid]
    assert standby in room.importers()


def test_auto_knows_the_imports_after_a_warm_round(world: World) -> None:
    """A warm worker records none; what a cold one recorded outlives the folder of its round."""
    room = Room(world, nproc=1, script=(importing(world),), warm=("--warm=auto",))
    room.begin_round()
    room.await_ready(1)
    room.end_round()
    (worker,) = room.begin_warm_round()
    rounds = len(room.agent.events("warm_started"))

    (standby,) = [pid for pid in room.await_ready(rounds + 1) if pid != worker.pid]
    assert standby in room.importers()


def test_auto_does_not_import_the_main_module(world: World) -> None:
    """A module that is run with -m is looked for like those that it imports."""
    module = Path(world.folder, "trained.py")
    module.write_text("import noted\nimport runpy\nprint('ran as', __name__, flush=True)\n")
    with module.open("a") as file:
        file.write(f"runpy.run_path({OBEDIENT!r}, run_name='__main__')\n")
    room = Room(world, nproc=1, script=("-m", "trained"), warm=("--warm=auto",))
    room.begin_round()
    room.await_ready(1)
    room.end_round()
    room.begin_warm_round()

    lines = room.agent.stdout().splitlines()
    assert {line for line in lines if "ran as" in line} == {"ran as __main__"}
    assert "found in sys.modules" not in room.agent.stderr()


def test_calls_follow_the_imports(world: World) -> None:
    """--warm-call alone imports the function's module, and calls it."""
    text = f"""
import os
def note():
    with open(os.path.join(os.path.dirname(__file__), "{NOTED}"), "a") as file:
        file.write(f"{{os.getpid()}} called\\n")
"""
    room = Room(world, nproc=1, text=text, warm=("--warm-call=noted:note",))
    (worker,) = room.begin_warm_round()

    assert room.importers()[worker.pid] == "called"


def test_spare_takes_over_with_its_standbys(world: World) -> None:
    """It makes them while the round runs elsewhere."""
    room = Room(world, nproc=1)
    room.begin_round()
    for count in range(TRIES):
        spare = room.start(f"spare{count}", "--warm=noted")
        spare.wait_event("standbys_ready")
        before = len(world.mailbox.started())
        room.end_round()
        world.mailbox.wait("started", before + 2)
        fresh = world.mailbox.started()[before:]
        (worker,) = (one for one in fresh if one.node == f"spare{count}")
        if spare.wait_event("warm_started")["workers"] == 1:
            assert worker.pid in room.importers()
            return
        room.partners.append(spare)
    raise AssertionError(room.agent.stderr())
