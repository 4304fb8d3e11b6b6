"""The dearest call of each instruction of the coordinator program, at full size."""

from __future__ import annotations

from bump_search import find_worst_number, make_run_id
from cost_search import Setting, Worst, search_worst
from program_driver import ProgramDriver, get_program_signer
from worst_calls import ARGUMENTS, CALL_KNOBS, CALL_STARTS, STRANGER, Arguments
from worst_states import NOW, STARTS, STATE_KNOBS, make_account, make_alike

from psyche_py.coordinator.layout import MAX_U64, Record
from psyche_py.coordinator.pda import ANYBODY, get_instance_seeds

MAX_DELEGATES = 256


class CoordinatorMeter:
    """Puts an account in place, sends one instruction, and says what it cost."""

    def __init__(self) -> None:
        self.driver = ProgramDriver(STRANGER + 1, unit_limit=1_400_000)

    def measure(self, name: str, setting: Setting) -> int:
        """Compute units of the instruction in this state; 0 when it is refused."""
        driver, record = self.driver, make_account(setting)
        arguments = ARGUMENTS[name](record, setting)
        if "authorization" in setting:
            self._authorize(setting["authorization"], name, record, arguments)
        driver.put(record.tobytes())
        driver.apply("advance", seconds=NOW - driver.now, slots=setting["slot"] - driver.slot)
        if "bond" in arguments:
            driver.apply("bond", bond=arguments["bond"], user=arguments["client"], amount=MAX_U64)
        driver.units.clear()
        error = driver.apply(name, **arguments)
        if name == "free_coordinator" and error is None:
            driver.reset()
        return driver.units[name] if error is None else 0

    def _authorize(self, kind: str, name: str, record: Record, arguments: Arguments) -> None:
        """Delegates who are hard to tell from whom the instruction is about."""
        if name == "join_run":
            user = get_program_signer(arguments["client"])
        else:
            user = record["entries"][arguments["entry"]]["signer"].tobytes()
        delegates = [key.tobytes() for key in make_alike(user, MAX_DELEGATES)]
        if kind == "the last of 256 delegates":
            delegates[-1] = user
        grantee = ANYBODY if kind == "everybody" else make_alike(user, 1).tobytes()
        expires = NOW - 1 if kind == "expired" else NOW + 1
        self.driver.put_authorization(0, grantee, delegates, active=True, expires=expires)

    def search(self, name: str, budget: int) -> Worst:
        """The dearest state for an instruction."""
        own = CALL_KNOBS.get(name, {})
        knobs = {**STATE_KNOBS, "sender": (255, 0), **own}
        starts = [{**state, **call} for state in STARTS for call in CALL_STARTS.get(name, ({},))]
        worst = search_worst(knobs, lambda setting: self.measure(name, setting), budget=budget, starts=starts)
        for slot in (
            range(100, 100 + budget // 4) if worst.setting else ()
        ):  # a slot decides the seed, and so the shuffle's path
            setting = {**worst.setting, "slot": slot}
            worst = max(worst, Worst(self.measure(name, setting), setting), key=lambda one: one.units)
        return worst

    def measure_init(self) -> int:
        """Compute units of creating a run whose address is hard to derive."""
        program = self.driver.program_id
        number = find_worst_number(lambda number: [(get_instance_seeds(make_run_id(number)), program)])
        self.driver.reset()
        self.driver.apply("free_coordinator")
        self.driver.units.clear()
        error = self.driver.apply("init_coordinator", run_id=make_run_id(number), client_version="v" * 96)
        assert error is None, error
        return self.driver.units["init_coordinator"]
