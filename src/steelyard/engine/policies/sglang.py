"""SGLang's scheduler: prompts before answers, an estimate of what answers will take, retraction when it was too low.

Every step is either prompts (a chunk of one long prompt may be carried over to the next step) or one token for each
running request; with ``mixed_chunk`` both. Waiting requests are looked at in the order of the longest prefix found in
the radix tree, or as they came. A request is admitted if its prompt and its whole answer fit beside what running
requests are expected to need still: ``ratio`` of what they may. The ratio falls with every decode step; when slots run
out after all, the requests with the shortest answers so far lose theirs and wait again, and the ratio is set anew.

Decisions equal those of SGLang 0.5.23 step by step on the goldens in the tests.
"""

from __future__ import annotations

from steelyard.engine.batch import Batch, Entry
from steelyard.engine.content import BlockNames
from steelyard.engine.limits import Limits
from steelyard.engine.policies.admission import Admission
from steelyard.engine.policies.expecting import RETRACT_STEPS, Expectation, SglangSettings
from steelyard.engine.policies.order import QueueOrder
from steelyard.engine.policies.pausing import PausingGroup, PromptOrDecodes
from steelyard.engine.policies.radix import Content
from steelyard.engine.policies.room import Room
from steelyard.engine.policies.slots import TokenPool
from steelyard.engine.request import FINISHED, KEPT, PREEMPTED, RUNNING, WAITING, Request
from steelyard.errors import UserError


class SglangScheduler:
    """Queues, tree and slots of one SGLang engine, and the decision who runs next."""

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
        self.fruitless = 0  # a retraction always leaves somebody who goes on
        self.expects = Expectation(self.settings)
        self._decoding: list[Request] = []  # in the order of the engine's own batch
        self._joining: list[Request] = []  # had their prompts' last part, or one token beside it, in the last step
        self._chunked: Request | None = None
        self._full = False  # nobody can be admitted before somebody leaves
        self._contents: dict[Request, Content] = {}
        self._last: Batch | None = None
        self._order = QueueOrder(self.settings.schedule_policy == "lpm")
        self._orders = 0
        self._someone_left = False
        self._next_step = 0
        self._step = 0  # being decided
        self._on_the_way = False  # a token for each member of the group, with the step in flight
        self._lull = False  # the last decision was to run nothing
        self._paused = -1  # the last step that ran prompts
        self._groups = (
            not plain
            and limits.async_scheduling
            and not self.settings.enable_mixed_chunk
            and self.settings.max_new_tokens is None
        )

    # -- queues -----------------------------------------------------------------------------------------------------

    def enqueue(self, r: Request) -> None:
        """A new request becomes visible."""
        if r.remote or r.keep:
            raise UserError("SGLang's scheduler takes no part in disaggregation yet; use scheduler: vllm")
        if r.rest != KEPT:
            raise UserError("SGLang's scheduler keeps all that rounds have computed; use kv: kept, or scheduler: vllm")
        if r.given >= 0:
            raise UserError("SGLang's scheduler looks up cached prompts itself; the workload must not state them")
        self.waiting.append(r)
        self._contents[r] = Content.of(r, self.names)

    def put_first(self, r: Request) -> None:
        """Nobody comes back to blocks that were held; `enqueue` refuses who would."""

    def only_decodes(self) -> bool:
        """Whether the next step can be nothing but one token for each member of the group."""
        return (
            0 < self.group.size == len(self._decoding)
            and not self._joining
            and self._chunked is None
            and (self._full or not self.waiting)
            and not self._lull
        )

    def remove(self, r: Request) -> None:
        """A request has ended or is given up: take it out of its queue and free its slots."""
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
        """The request that keeps an otherwise empty engine from doing anything."""
        return self.waiting[0] if self.waiting else next(iter(self.running))

    # -- one step ---------------------------------------------------------------------------------------------------

    def schedule(self, step: int, now: float, flight: Batch | None) -> Batch:
        """Decide the next step; it may turn out empty."""
        for _ in range(step - self._next_step):
            self.expects.decoded()  # for steps that were run without asking
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
        """Let those join the running batch who were in the last step, and those leave it who have ended."""
        chunked = self._chunked
        if chunked is not None and chunked.computed > self.kv.holdings[chunked].prefix:
            self.kv.keep(chunked, chunked.computed)
        joining = [r for r in self._joining if r.status < FINISHED and r is not chunked]
        if len(joining) < len(self._joining):
            self._full = False
        if joining and not self._decoding:
            self._full = False  # the new batch takes the place of the empty one
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
        """Keep in mind the order of the engine's batch, in which requests end."""
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
        """Who runs in this step beside so many answers, with the tokens of each."""
        expected = sum([self.expects.left(r, self._answered(r)) for r in self._decoding])
        room = Room(self.kv, self.settings.max_prefill_tokens, self._chunk_size(), mixed, expected)
        admission = Admission(self.kv, room, self.expects, self._decoding, self._answered)
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
        """Requests that a pass may bring into the batch, of whom ``held`` have a seat already."""
        most = self.limits.max_num_seqs
        return min(most - len(self._decoding), max(most - len(self.running) + held, 0))

    def _answered(self, r: Request) -> int:
        """Tokens that a request has been given by now, of which a member of the group keeps no count."""
        return self._step - self._on_the_way - r.offset + 1 - r.prompt if r.grouped else r.outputs

    def _start(self, batch: Batch, admitted: dict[Request, int], now: float) -> None:
        """Give the admitted their slots and put them into the step."""
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
        """Let the running requests have a token beside the prompts, where there are slots for it."""
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
        """The last token that it may have is already on the way."""
        return r.in_flight > 0 and r.outputs + 1 >= self.expects.allowed(r)

    def _answers(self, batch: Batch, flight: Batch | None) -> None:
        """One token for each running request; some may lose their slots for it."""
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
        """Move a request into the group, once its prompt's result has come; not if it has a token on the way and
        but one to go, since it would leave before that token has come."""
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
        """Go back to one request at a time; ``step`` is the next to be scheduled."""
        members = self.group.dissolve(step)
        if flight is not None and self._paused != step - 1:
            self.await_last_token(members, flight)
        else:
            for r in members:
                r.outputs = r.computed + 1 - r.prompt

    def await_last_token(self, leavers: list[Request], flight: Batch) -> None:
        """Requests that left the group have one token in flight, which the step's result will bring."""
        for r in leavers:
            r.outputs = r.computed - r.prompt
            r.in_flight = 1
            entry = Entry(r, 1, 0)
            entry.sampled = 1
            flight.entries.append(entry)
        flight.entries.sort(key=lambda entry: entry.request.order)

    def _retract(self, batch: Batch, flight: Batch | None) -> None:
        """Take slots from the requests with the shortest answers, and of those the longest prompts."""
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
                    entry.sampled = 0  # the token on the way is lost
                    r.unsay(flight.step)
        batch.preempted.append(r)
        self.waiting.append(r)

    # -- results ----------------------------------------------------------------------------------------------------

    def update(self, batch: Batch) -> list[Request]:
        """Hand out a step's tokens; returns the requests that have ended."""
        ended: list[Request] = []
        prompts = len(batch.chunks)
        for i, entry in enumerate(batch.entries):
            r = entry.request
            if r.grouped:
                continue  # it joined the group since; the group knows how far it is
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
        """Nobody fetches; `enqueue` refuses who would."""

    def let_go(self, r: Request) -> None:
        """Nobody keeps anything for others; `enqueue` refuses who would."""
