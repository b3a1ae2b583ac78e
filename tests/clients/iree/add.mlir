// Element by element: one kernel, 1000 elements, which are no multiple of a wave's or a work-group's.
func.func @main(%a: tensor<1000xf32>, %b: tensor<1000xf32>) -> tensor<1000xf32> {
  %sum = arith.addf %a, %b : tensor<1000xf32>
  return %sum : tensor<1000xf32>
}
