// SPDX-License-Identifier: MIT OR Apache-2.0
// All kernels as one translation unit: linked from several, a code object would carry several metadata notes, of
// which some loaders read only the first.
#include "fill.c"
#include "copy.c"
