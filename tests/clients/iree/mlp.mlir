// Two dense layers with a bias, max(x, 0) between them: several kernels, one after the other.
#row = affine_map<(i, j) -> (j)>
#all = affine_map<(i, j) -> (i, j)>
func.func @main(%x: tensor<8x32xf32>, %w1: tensor<32x48xf32>, %b1: tensor<48xf32>,
                %w2: tensor<48x10xf32>, %b2: tensor<10xf32>) -> tensor<8x10xf32> {
  %zero = arith.constant 0.0 : f32
  %empty1 = tensor.empty() : tensor<8x48xf32>
  %start1 = linalg.fill ins(%zero : f32) outs(%empty1 : tensor<8x48xf32>) -> tensor<8x48xf32>
  %product1 = linalg.matmul ins(%x, %w1 : tensor<8x32xf32>, tensor<32x48xf32>)
    outs(%start1 : tensor<8x48xf32>) -> tensor<8x48xf32>
  %hidden = linalg.generic {indexing_maps = [#all, #row, #all], iterator_types = ["parallel", "parallel"]}
    ins(%product1, %b1 : tensor<8x48xf32>, tensor<48xf32>) outs(%empty1 : tensor<8x48xf32>) {
  ^bb0(%value: f32, %bias: f32, %out: f32):
    %sum = arith.addf %value, %bias : f32
    %positive = arith.maximumf %sum, %zero : f32
    linalg.yield %positive : f32
  } -> tensor<8x48xf32>
  %empty2 = tensor.empty() : tensor<8x10xf32>
  %start2 = linalg.fill ins(%zero : f32) outs(%empty2 : tensor<8x10xf32>) -> tensor<8x10xf32>
  %product2 = linalg.matmul ins(%hidden, %w2 : tensor<8x48xf32>, tensor<48x10xf32>)
    outs(%start2 : tensor<8x10xf32>) -> tensor<8x10xf32>
  %result = linalg.generic {indexing_maps = [#all, #row, #all], iterator_types = ["parallel", "parallel"]}
    ins(%product2, %b2 : tensor<8x10xf32>, tensor<10xf32>) outs(%empty2 : tensor<8x10xf32>) {
  ^bb0(%value: f32, %bias: f32, %out: f32):
    %sum = arith.addf %value, %bias : f32
    linalg.yield %sum : f32
  } -> tensor<8x10xf32>
  return %result : tensor<8x10xf32>
}
