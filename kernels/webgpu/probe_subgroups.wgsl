// Whether each four threads of a group that are neighbours are so in a subgroup: WGSL leaves open
// which threads that has, and reduce.wgsl rests on it.
#if $SUBGROUPS == enabled
enable subgroups;
#end

// those that are not, and all
@group(0) @binding(0) var<storage, read_write> cell: array<atomic<u32>, 2>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lane: u32) {
  let beside = subgroupShuffleXor(lane, 1u);
  let next = subgroupShuffleXor(lane, 2u);
  if (beside != (lane ^ 1u) || next != (lane ^ 2u)) { atomicAdd(&cell[0], 1u); }
  atomicAdd(&cell[1], 1u);
}
