// A maximum, an exponential and a sum along each row.
func.func @main(%a: tensor<12x77xf32>) -> tensor<12x77xf32> {
  %empty = tensor.empty() : tensor<12x77xf32>
  %result = linalg.softmax dimension(1) ins(%a : tensor<12x77xf32>) outs(%empty : tensor<12x77xf32>) -> tensor<12x77xf32>
  return %result : tensor<12x77xf32>
}
