"""A rank's place: its coordinates along the tensor, data and pipeline axes, and the groups it belongs to.

Tensor ranks are innermost, then data, then pipeline: rank = t + tp (d + dp p), Megatron-LM's order. Context ranks are
data ranks beside each other that have parts of the same sequences; gradients and sharded states know no difference.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.trainer.communicator import RankGroup


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Degrees of parallelism, and one rank's coordinates in them.

    dp: data ranks, context ranks among them: replicas times cp. ulysses: context ranks that exchange heads for tokens.
    dp_replicate: copies of what is sharded over data ranks, each on neighbours (hybrid sharding). apart: where tensor
    ranks are those of a whole pipeline, how many of each of its ranks are neighbours; 0: all are.
    """

    dp: int
    tp: int
    pp: int
    rank: int
    cp: int = 1
    ulysses: int = 1
    dp_replicate: int = 1
    apart: int = 0

    @property
    def num_ranks(self) -> int:
        """All ranks."""
        return self.dp * self.tp * self.pp

    @property
    def t(self) -> int:
        """Coordinate along the tensor axis."""
        near = self.apart or self.tp
        return self.rank % near + near * (self.rank // (near * self.dp) % (self.tp // near))

    @property
    def d(self) -> int:
        """Coordinate along the data axis."""
        return self.rank // (self.apart or self.tp) % self.dp

    @property
    def c(self) -> int:
        """Coordinate among the context ranks."""
        return self.d % self.cp

    @property
    def replica(self) -> int:
        """This rank's replica, which decides its sequences."""
        return self.d // self.cp

    @property
    def num_shards(self) -> int:
        """Data ranks that one copy of a sharded state is spread over."""
        return self.dp // self.dp_replicate

    @property
    def p(self) -> int:
        """Coordinate along the pipeline axis."""
        return self.rank // (self.tp * self.dp)

    def at(self, *, t: int | None = None, d: int | None = None, p: int | None = None) -> int:
        """The rank at other coordinates; those not given stay."""
        t = self.t if t is None else t
        d = self.d if d is None else d
        p = self.p if p is None else p
        near = self.apart or self.tp
        return t % near + near * (d + self.dp * (t // near + p))

    @property
    def tensor(self) -> RankGroup:
        """Ranks that share each layer."""
        return RankGroup("tp", tuple(self.at(t=t) for t in range(self.tp)))

    @property
    def data(self) -> RankGroup:
        """Ranks that hold the same parameters and see other data."""
        return RankGroup("dp", tuple(self.at(d=d) for d in range(self.dp)))

    @property
    def shard(self) -> RankGroup:
        """The data ranks that hold the other parts of this rank's copy."""
        first = self.d - self.d % self.num_shards
        return RankGroup("dp", tuple(self.at(d=first + i) for i in range(self.num_shards)))

    @property
    def copies(self) -> RankGroup:
        """The data ranks that hold this rank's part of the other copies."""
        return RankGroup("dp", tuple(self.at(d=d) for d in range(self.d % self.num_shards, self.dp, self.num_shards)))

    @property
    def neighbours(self) -> RankGroup:
        """The context ranks that exchange heads for tokens with this one."""
        first = self.d - self.c % self.ulysses
        return RankGroup("cp", tuple(self.at(d=first + i) for i in range(self.ulysses)))

    @property
    def ring(self) -> RankGroup:
        """The context ranks that keys and values travel across, one of each group of neighbours."""
        first = self.d - self.c + self.c % self.ulysses
        return RankGroup("cp", tuple(self.at(d=first + i) for i in range(0, self.cp, self.ulysses)))

    def expert_mesh(self, ep: int) -> Mesh:
        """The same ranks as experts see them: ep of them beside each other share a layer's experts.

        They stand in for the tensor ranks; the data ranks are those that hold the same experts.
        """
        return Mesh(dp=self.dp * self.tp // ep, tp=ep, pp=self.pp, rank=self.rank, dp_replicate=self.dp_replicate)

    @property
    def whole_pipeline(self) -> Mesh:
        """The same ranks as tables see them that all pipeline ranks share: these stand beside the tensor ranks."""
        both = self.tp * self.pp
        return Mesh(dp=self.dp, tp=both, pp=1, rank=self.rank, dp_replicate=self.dp_replicate, apart=self.tp)

    @property
    def sequence(self) -> RankGroup:
        """The ranks whose tokens are of the same sequences, where tensor ranks split them."""
        first = self.d - self.c
        ranks = tuple(self.at(t=t, d=first + c) for c in range(self.cp) for t in range(self.tp))
        return RankGroup("sequence", ranks)

    @property
    def world(self) -> RankGroup:
        """All ranks."""
        return RankGroup("world", tuple(range(self.num_ranks)))

    def holders(self, pipeline_ranks: tuple[int, ...]) -> RankGroup:
        """Pipeline ranks that hold the same parameters: a tied embedding's, or a second model replica's."""
        return RankGroup("replica", tuple(self.at(p=p) for p in pipeline_ranks))
