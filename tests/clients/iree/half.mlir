// A product of half precision that is summed in single precision: matrix instructions.
func.func @main(%a: tensor<32x48xf16>, %b: tensor<48x64xf16>) -> tensor<32x64xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<32x64xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<32x64xf32>) -> tensor<32x64xf32>
  %product = linalg.matmul ins(%a, %b : tensor<32x48xf16>, tensor<48x64xf16>)
    outs(%start : tensor<32x64xf32>) -> tensor<32x64xf32>
  return %product : tensor<32x64xf32>
}
