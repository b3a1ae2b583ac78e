// A product of odd sizes: tiles with edges.
func.func @main(%a: tensor<33x65xf32>, %b: tensor<65x17xf32>) -> tensor<33x17xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<33x17xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<33x17xf32>) -> tensor<33x17xf32>
  %product = linalg.matmul ins(%a, %b : tensor<33x65xf32>, tensor<65x17xf32>)
    outs(%start : tensor<33x17xf32>) -> tensor<33x17xf32>
  return %product : tensor<33x17xf32>
}
