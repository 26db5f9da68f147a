// Counts to the first number, to find an adapter whose loops stop earlier.
@group(0) @binding(0) var<storage, read_write> cell: array<u32, 2>;

@compute @workgroup_size(1)
fn main() {
  let wanted = cell[0];
  var counted = 0u;
  for (var i = 0u; i < wanted; i++) {
    counted = select(counted + 1u, counted, counted > i);
  }
  cell[1] = counted;
}
