// SPDX-License-Identifier: MIT OR Apache-2.0
//! Host instructions of both widths that several modules use.

use iced_x86::Code;

/// A code for both widths; `INVALID` where AVX2 has none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codes {
    pub z: Code,
    pub y: Code,
}

pub(super) const AND: Codes =
    Codes { z: Code::EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpand_ymm_ymm_ymmm256 };
pub(super) const XOR: Codes =
    Codes { z: Code::EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpxor_ymm_ymm_ymmm256 };
pub(super) const OR: Codes =
    Codes { z: Code::EVEX_Vpord_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpor_ymm_ymm_ymmm256 };
pub(super) const ADD: Codes =
    Codes { z: Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpaddd_ymm_ymm_ymmm256 };
pub(super) const SUB: Codes =
    Codes { z: Code::EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpsubd_ymm_ymm_ymmm256 };
pub(super) const MOVE: Codes =
    Codes { z: Code::EVEX_Vmovdqa32_zmm_k1z_zmmm512, y: Code::VEX_Vmovdqa_ymm_ymmm256 };
pub(super) const FMA231: Codes =
    Codes { z: Code::EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er, y: Code::VEX_Vfmadd231ps_ymm_ymm_ymmm256 };
pub(super) const FMA132: Codes =
    Codes { z: Code::EVEX_Vfmadd132ps_zmm_k1z_zmm_zmmm512b32_er, y: Code::VEX_Vfmadd132ps_ymm_ymm_ymmm256 };
pub(super) const SHIFT_LEFT: Codes =
    Codes { z: Code::EVEX_Vpsllvd_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpsllvd_ymm_ymm_ymmm256 };
pub(super) const SHIFT_RIGHT: Codes =
    Codes { z: Code::EVEX_Vpsrlvd_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpsrlvd_ymm_ymm_ymmm256 };
pub(super) const SHIFT_RIGHT_SIGNED: Codes =
    Codes { z: Code::EVEX_Vpsravd_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpsravd_ymm_ymm_ymmm256 };
pub(super) const ADD_PS: Codes =
    Codes { z: Code::EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er, y: Code::VEX_Vaddps_ymm_ymm_ymmm256 };
pub(super) const SUB_PS: Codes =
    Codes { z: Code::EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er, y: Code::VEX_Vsubps_ymm_ymm_ymmm256 };
pub(super) const MUL_PS: Codes =
    Codes { z: Code::EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er, y: Code::VEX_Vmulps_ymm_ymm_ymmm256 };
