"""How sequences lie in a pack, which part of it each context rank has, and what a router is told of it."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openmle_erl.engines.megatron.packs import context_rows, joined_order, pack, pack_length
from openmle_erl.engines.megatron.replay import LayerReplay
from openmle_erl.engines.memory import ParallelSizes
from openmle_erl.engines.packing import TokenRow
from torch import Tensor


def row(ids: list[int], wanted: list[int]) -> TokenRow:
    mask = np.zeros(len(ids), dtype=np.bool_)
    mask[wanted] = True
    return TokenRow(ids=np.array(ids, dtype=np.int64), wanted=mask)


def test_sequences_lie_one_behind_the_other_with_the_token_before_each_wanted_one() -> None:
    rows = [row([1, 2, 3], [1, 2]), row([9], []), row([4, 5, 6, 7], [3])]
    made = pack(rows, [2, 0], ParallelSizes(), length=8)
    assert made.starts == (0, 4, 7, 8)
    assert made.tokens_N.tolist() == [4, 5, 6, 7, 1, 2, 3, 0]
    assert made.targets_N.tolist() == [5, 6, 7, 0, 2, 3, 0, 0]
    assert made.wanted_M.tolist() == [2, 4, 5]
    assert made.targets_N[made.wanted_M].tolist() == [7, 2, 3]
    assert made.padded(torch.tensor([0.1, 0.2, 0.3])).tolist() == [
        [torch.tensor(0.1).item(), 0.0],
        [torch.tensor(0.2).item(), torch.tensor(0.3).item()],
    ]
    assert made.longest == 4


def test_a_pack_without_sequences_is_a_pack_of_padding() -> None:
    made = pack([row([1, 2], [1])], [], ParallelSizes(tensor=2), length=pack_length([], ParallelSizes(tensor=2)))
    assert (made.items, made.starts, made.tokens_N.tolist()) == ((), (0, 2), [0, 0])


def test_padding_lets_both_kinds_of_ranks_cut() -> None:
    """Context 2: each sequence in 4 chunks, so 5 and 3 tokens take 8 and 4; tensor 2 as well: a multiple of 8."""
    assert pack_length([5, 3], ParallelSizes(context=2)) == 12
    assert pack_length([5, 3], ParallelSizes(context=2, tensor=2)) == 16
    assert pack_length([5, 3], ParallelSizes(tensor=3)) == 9


def test_a_context_rank_has_a_chunk_of_the_front_and_one_of_the_back() -> None:
    starts = (0, 8, 12)
    assert context_rows(starts, rank=0, ranks=2).tolist() == [0, 1, 6, 7, 8, 11]
    assert context_rows(starts, rank=1, ranks=2).tolist() == [2, 3, 4, 5, 9, 10]


@settings(max_examples=30, deadline=None)
@given(chunks=st.lists(st.integers(1, 3), min_size=1, max_size=4), ranks=st.integers(1, 4))
def test_what_context_ranks_have_is_joined_in_the_packs_order(chunks: list[int], ranks: int) -> None:
    lengths = [2 * ranks * each for each in chunks]
    starts = (0, *np.cumsum(lengths).tolist())
    whole = torch.arange(starts[-1]) * 10
    parts = [whole[context_rows(starts, rank=rank, ranks=ranks)] for rank in range(ranks)]
    assert len({len(part) for part in parts}) == 1
    assert torch.equal(torch.cat(parts)[joined_order(starts, ranks)], whole)


def best(scores: Tensor, topk: int, num_groups: int | None, group_topk: int | None) -> tuple[Tensor, Tensor]:
    assert num_groups is None
    assert group_topk is None
    return torch.topk(scores, topk, dim=1)


def test_recorded_experts_are_used_with_the_routers_own_scores() -> None:
    replay = LayerReplay(recompute=False)
    scores = torch.tensor([[0.1, 0.7, 0.2], [0.6, 0.1, 0.3]])
    replay.expect(torch.tensor([[2, 0], [-1, -1]]), train=True)
    values, experts = replay.get_replay_topk(scores, 2, None, None, best)
    assert experts.tolist() == [[2, 0], [0, 2]]
    assert torch.equal(values, torch.tensor([[0.2, 0.1], [0.6, 0.3]]))
    replay.expect(None, train=True)
    assert replay.get_replay_topk(scores, 2, None, None, best)[1].tolist() == [[1, 2], [0, 2]]


def test_a_layer_computed_again_is_routed_as_it_was_though_others_passed_meanwhile() -> None:
    """Recomputation in a pipeline: two passes forward without a gradient, then both again with one."""
    replay = LayerReplay(recompute=True)
    scores = torch.tensor([[0.1, 0.7, 0.2]])
    seen = []
    with torch.no_grad():
        for expert in (0, 2):
            replay.expect(torch.tensor([[expert]]), train=True)
            seen.append(replay.get_replay_topk(scores, 1, None, None, best)[1].item())
    with torch.enable_grad():
        seen += [replay.get_replay_topk(scores, 1, None, None, best)[1].item() for _ in range(2)]
    assert seen == [0, 2, 0, 2]


def test_passes_that_only_look_leave_nothing_for_later() -> None:
    replay = LayerReplay(recompute=True)
    scores = torch.tensor([[0.1, 0.7, 0.2]])
    with torch.no_grad():
        replay.expect(torch.tensor([[0]]), train=False)
        replay.get_replay_topk(scores, 1, None, None, best)
        replay.expect(torch.tensor([[2]]), train=True)
        replay.get_replay_topk(scores, 1, None, None, best)
    with torch.enable_grad():
        assert replay.get_replay_topk(scores, 1, None, None, best)[1].item() == 2
