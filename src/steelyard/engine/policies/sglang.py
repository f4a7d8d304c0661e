"""SGLang's scheduler: prefill before decode, an estimate of output lengths, retraction when it was too low.

A step runs either prompts (the rest of a long one follows in the next step) or one token for each running request; with
``mixed_chunk`` both. Waiting requests are ordered by the longest prefix in the radix tree, or by arrival. A request is
admitted if its prompt and its whole output fit beside what running requests are expected to need: ``ratio`` of what is
allowed. The ratio falls with every decode step. When slots run out, the requests with the shortest outputs lose their
slots and wait again, and the ratio is raised.

Decisions equal those of SGLang 0.5.23 step by step on the goldens in the tests.
"""

from __future__ import annotations

from steelyard.engine.batch import Batch, Entry
from steelyard.engine.content import BlockNames
from steelyard.engine.limits import Limits
from steelyard.engine.policies.admission import AdmissionPass
from steelyard.engine.policies.budget import PassBudget
from steelyard.engine.policies.expecting import RETRACT_STEPS, Expectation, SglangSettings
from steelyard.engine.policies.order import QueueOrder
from steelyard.engine.policies.pausing import PausingGroup, PromptOrDecodes
from steelyard.engine.policies.radix import Content
from steelyard.engine.policies.slots import TokenPool
from steelyard.engine.request import FINISHED, KEPT, PREEMPTED, RUNNING, WAITING, Request
from steelyard.errors import UserError


class SglangScheduler:
    """Queues, tree and slots of one SGLang engine, and the decision what runs next."""

    def __init__(
        self, limits: Limits, names: BlockNames, settings: SglangSettings | None = None, *, plain: bool = False
    ) -> None:
        if limits.block_size != 1:
            raise UserError(f"SGLang's scheduler keeps single tokens: block_size must be 1, not {limits.block_size}")
        if limits.speculative_tokens:
            raise UserError("speculative decoding is not there yet with SGLang's scheduler")
        self.limits = limits
        self.names = names
        self.settings = settings or SglangSettings()
        self.kv = TokenPool(limits.blocks, limits.enable_prefix_caching)
        self.group = PausingGroup(limits.block_size)
        self.waiting: list[Request] = []
        self.running: dict[Request, None] = {}  # all that have slots
        self.loading: dict[Request, None] = {}
        self.ready: list[Request] = []
        self.to_load: list[tuple[Request, int, float]] = []
        self.steps_without_progress = 0  # after a retraction at least one request continues
        self.expects = Expectation(self.settings)
        self._decoding: list[Request] = []  # in the order of the engine's own batch
        self._joining: list[Request] = []  # requests of the last step, which join the decoding ones
        self._chunked: Request | None = None
        self._full = False  # no request can be admitted before one leaves
        self._contents: dict[Request, Content] = {}
        self._last: Batch | None = None
        self._order = QueueOrder(self.settings.schedule_policy == "lpm")
        self._orders = 0
        self._someone_left = False
        self._next_step = 0
        self._step = 0  # being scheduled
        self._on_the_way = False  # the step in flight has a token for each member of the group
        self._lull = False  # the last batch was empty
        self._paused = -1  # the last step that ran prompts
        self._groups = (
            not plain
            and limits.async_scheduling
            and not self.settings.enable_mixed_chunk
            and self.settings.max_new_tokens is None
        )

    # -- queues -----------------------------------------------------------------------------------------------------

    def enqueue(self, r: Request) -> None:
        """Add a new request to the waiting queue."""
        if r.remote or r.keep:
            raise UserError("SGLang's scheduler takes no part in disaggregation yet; use scheduler: vllm")
        if r.rest != KEPT:
            raise UserError("SGLang's scheduler keeps all that rounds have computed; use kv: kept, or scheduler: vllm")
        if r.given >= 0:
            raise UserError("SGLang's scheduler looks up cached prompts itself; the workload must not state them")
        self.waiting.append(r)
        self._contents[r] = Content.of(r, self.names)

    def put_first(self, r: Request) -> None:
        """No request returns to held blocks; `enqueue` refuses such requests."""

    def only_decodes(self) -> bool:
        """Whether the next step is just one token for each member of the group."""
        return (
            0 < self.group.size == len(self._decoding)
            and not self._joining
            and self._chunked is None
            and (self._full or not self.waiting)
            and not self._lull
        )

    def remove(self, r: Request) -> None:
        """Remove a request that has ended or is aborted, and free its slots."""
        if r in self.kv.holdings:
            self.kv.release(r)
        if r in self.running:
            del self.running[r]
            self._someone_left = True
            if self._chunked is r:
                self._chunked = None
        else:
            self.waiting.remove(r)
        del self._contents[r]

    def refuse_head(self) -> Request:
        """The request that blocks an otherwise empty engine, to be rejected."""
        return self.waiting[0] if self.waiting else next(iter(self.running))

    # -- one step ---------------------------------------------------------------------------------------------------

    def schedule(self, step: int, now: float, flight: Batch | None) -> Batch:
        """Schedule the next step; its batch may be empty."""
        for _ in range(step - self._next_step):
            self.expects.decoded()  # for steps that were run without scheduling
        if not self.running and self._last is not None and now > self._last.end:
            self.expects.start_over()
        self._step = step
        self._on_the_way = flight is not None and self._paused != step - 1
        self._settle()
        batch = PromptOrDecodes(step)
        if not self._prompts(batch, now):
            self._answers(batch, flight)
        self._lull = batch.empty
        self._next_step = step
        if not batch.empty:
            self._next_step += 1
            self._last = batch
        return batch

    def _settle(self) -> None:
        """Add the requests of the last step to the decoding ones, and remove ended requests."""
        chunked = self._chunked
        if chunked is not None and chunked.computed > self.kv.holdings[chunked].prefix:
            self.kv.keep(chunked, chunked.computed)
        joining = [r for r in self._joining if r.status < FINISHED and r is not chunked]
        if len(joining) < len(self._joining):
            self._full = False
        if joining and not self._decoding:
            self._full = False  # the new batch replaces the empty one
        if self._someone_left:
            self._someone_left = False
            before = len(self._decoding)
            self._decoding = [r for r in self._decoding if r.status < FINISHED]
            if len(self._decoding) < before:
                self._full = False
        self._number(joining)
        self._decoding += joining
        self._joining = []

    def _number(self, decoding: list[Request]) -> None:
        """Number requests in the order of the engine's batch, in which they end."""
        for r in decoding:
            self._orders += 1
            r.order = self._orders

    # -- prompts ----------------------------------------------------------------------------------------------------

    def _prompts(self, batch: Batch, now: float) -> bool:
        """Fill a step with prompts, if any can run."""
        if not self._decoding:
            self._full = False
        if self._chunked is None and (self._full or not self.waiting):
            return False
        if self._chunked is None and self._seats(0) <= 0:
            self._full = True
            return False
        if self.kv.tree is not None:
            self._order.sort(self.waiting, self._contents, self.kv.tree)
        mixed = len(self._decoding) if self.settings.enable_mixed_chunk and self._chunk_size() is not None else 0
        admitted = self._admit(mixed)
        if not admitted:
            return False
        self._start(batch, admitted, now)
        self._paused = batch.step
        if self.group.size:
            self.group.pause(batch.step)
        if mixed:
            self._mix(batch)
        return True

    def _admit(self, mixed: int) -> dict[Request, int]:
        """The prompts of this step with their tokens, beside ``mixed`` decodes."""
        expected = sum([self.expects.left(r, self._answered(r)) for r in self._decoding])
        room = PassBudget(self.kv, self.settings.max_prefill_tokens, self._chunk_size(), mixed, expected)
        admission = AdmissionPass(self.kv, room, self.expects, self._decoding, self._answered)
        admission.full = self._full
        seats = self._seats(self._chunked is not None)
        if self._chunked is not None:
            admission.carry_on(self._chunked)
        admission.admit(self.waiting, self._contents, seats)
        self._chunked, self._full = admission.chunked, admission.full
        return admission.admitted

    def _chunk_size(self) -> int | None:
        return self.limits.max_num_batched_tokens if self.limits.enable_chunked_prefill else None

    def _seats(self, held: int) -> int:
        """How many requests a pass may add to the batch; ``held`` of them already have a seat."""
        most = self.limits.max_num_seqs
        return min(most - len(self._decoding), max(most - len(self.running) + held, 0))

    def _answered(self, r: Request) -> int:
        """Output tokens of a request so far; a member of the group does not count them."""
        return self._step - self._on_the_way - r.offset + 1 - r.prompt if r.grouped else r.outputs

    def _start(self, batch: Batch, admitted: dict[Request, int], now: float) -> None:
        """Allocate slots for admitted requests and add them to the batch."""
        self.waiting = [r for r in self.waiting if r not in admitted]
        self.kv.take(sum(admitted.values()))
        for r, tokens in admitted.items():
            holding = self.kv.holdings[r]
            if r.status != RUNNING:
                if r.status == WAITING:
                    r.scheduled = now
                    r.hit = holding.prefix
                r.status = RUNNING
                self.running[r] = None
                r.computed = holding.prefix
            batch.chunks.append((tokens, r.computed))
            r.computed += tokens
            r.chunking = r is self._chunked
            entry = Entry(r, tokens, 0)
            entry.sampled = 0 if r.chunking else 1
            r.in_flight += tokens
            batch.entries.append(entry)
            self._joining.append(r)
        batch.scheduled = batch.entries

    def _mix(self, batch: Batch) -> None:
        """Add one token for each running request to a step with prompts, if there are slots."""
        leaving = [r for r in self._decoding if self._ends_in_flight(r)]
        if leaving:
            self._decoding = [r for r in self._decoding if r not in leaving]
            self._full = False
        if self._decoding and self.kv.clear(len(self._decoding)):
            self._decode(batch)
            self._joining += self._decoding
            self._decoding = []

    # -- answers ----------------------------------------------------------------------------------------------------

    def _ends_in_flight(self, r: Request) -> bool:
        """Whether its last allowed token is in flight."""
        return r.in_flight > 0 and r.outputs + 1 >= self.expects.allowed(r)

    def _answers(self, batch: Batch, flight: Batch | None) -> None:
        """Schedule one token for each running request; some may be retracted for it."""
        if not self._decoding:
            return
        leaving = {r for r in self._decoding if self._ends_in_flight(r)}
        if leaving:
            self._decoding = [r for r in self._decoding if r not in leaving]
            self._full = False
            if not self._decoding:
                return
        if self.kv.clear(len(self._decoding)):
            self.expects.decoded()
        elif leaving:
            return  # their slots come back with the step in flight
        else:
            self.ungroup(batch.step, flight)
            self._retract(batch, flight)
            self._full = False
        self._decode(batch)

    def _decode(self, batch: Batch) -> None:
        self.kv.take(len(self._decoding))
        if self.group.size < len(self._decoding):
            for r in self._decoding:
                if not r.grouped and not self._join(r, batch.step):
                    self._decode_alone(r, batch)
        batch.scheduled = batch.entries
        group = self.group
        if group.size:
            group.tokens += group.size
            batch.decodes += group.size
            batch.kv += group.tokens
            batch.longest = max(batch.longest, group.longest(batch.step) + 1)

    def _decode_alone(self, r: Request, batch: Batch) -> None:
        r.computed += 1
        r.in_flight += 1
        entry = Entry(r, 1, 0)
        entry.sampled = 1
        batch.entries.append(entry)
        batch.decodes += 1
        batch.kv += r.computed
        batch.longest = max(batch.longest, r.computed)

    def _join(self, r: Request, step: int) -> bool:
        """Move a request into the group once its prompt's result is back. Not if it has a token in flight and only
        one left, since it would leave the group before that token is back."""
        if not self._groups:
            return False
        if r.in_flight and (self._paused == step - 1 or r.computed + 2 >= r.prompt + r.output):
            return False
        if r.in_flight:
            r.in_flight = 0
            r.emit(step - 1)
        elif r.last < step - 1:
            r.breaks = r.breaks or []
            r.breaks.append((r.last, step))
        self.group.join(r, step)
        return True

    def ungroup(self, step: int, flight: Batch | None) -> None:
        """Schedule requests one by one again; ``step`` is the next to be scheduled."""
        members = self.group.dissolve(step)
        if flight is not None and self._paused != step - 1:
            self.await_last_token(members, flight)
        else:
            for r in members:
                r.outputs = r.computed + 1 - r.prompt

    def await_last_token(self, leavers: list[Request], flight: Batch) -> None:
        """Requests that left the group have one token in flight, which the step's result delivers."""
        for r in leavers:
            r.outputs = r.computed - r.prompt
            r.in_flight = 1
            entry = Entry(r, 1, 0)
            entry.sampled = 1
            flight.entries.append(entry)
        flight.entries.sort(key=lambda entry: entry.request.order)

    def _retract(self, batch: Batch, flight: Batch | None) -> None:
        """Retract the requests with the shortest outputs, and among these the longest prompts."""
        kept = sorted(self._decoding, key=lambda r: (r.outputs, -r.prompt), reverse=True)
        while len(kept) > 1:
            self._put_back(kept.pop(), batch, flight)
            self.kv.clear(len(kept) * RETRACT_STEPS)
            if self.kv.clear(len(kept)):
                break
        if not self.kv.clear(len(kept)):
            self._put_back(kept.pop(), batch, flight)
        self._decoding = kept
        self._number(kept)
        self.expects.retracted(kept)

    def _put_back(self, r: Request, batch: Batch, flight: Batch | None) -> None:
        self.kv.release(r)
        del self.running[r]
        r.status = PREEMPTED
        r.computed = 0
        r.preemptions += 1
        if flight is not None:
            for entry in flight.entries:
                if entry.request is r:
                    entry.sampled = 0  # the token in flight is lost
                    r.undo_emit(flight.step)
        batch.preempted.append(r)
        self.waiting.append(r)

    # -- results ----------------------------------------------------------------------------------------------------

    def update(self, batch: Batch) -> list[Request]:
        """Deliver a step's tokens; returns the ended requests."""
        ended: list[Request] = []
        prompts = len(batch.chunks)
        for i, entry in enumerate(batch.entries):
            r = entry.request
            if r.grouped:
                continue  # it has joined the group, which counts its tokens
            r.in_flight -= entry.tokens
            if r.status >= FINISHED or not entry.sampled:
                continue
            r.emit(batch.step)
            r.outputs += 1
            if r.outputs >= r.output:
                self.kv.keep(r, min(r.computed, r.prompt + r.outputs))
                self.kv.release(r)
                ended.append(r)
            elif i < prompts:
                self.kv.keep(r, r.prompt + r.outputs - 1)
        return ended

    def loaded(self, r: Request) -> None:
        """No request fetches blocks; `enqueue` refuses such requests."""

    def let_go(self, r: Request) -> None:
        """No request keeps blocks for others; `enqueue` refuses such requests."""
