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
/// A dword, of memory or the lowest one of a register, to all lanes.
pub(super) const BROADCAST: Codes =
    Codes { z: Code::EVEX_Vpbroadcastd_zmm_k1z_xmmm32, y: Code::VEX_Vpbroadcastd_ymm_xmmm32 };
/// Lanes of the last operand by the numbers in the one before it.
pub(super) const PERMUTE: Codes =
    Codes { z: Code::EVEX_Vpermd_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpermd_ymm_ymm_ymmm256 };
/// Shifts by an immediate, which may be 32 or more.
pub(super) const LEFT_BY: Codes =
    Codes { z: Code::EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8, y: Code::VEX_Vpslld_ymm_ymm_imm8 };
pub(super) const RIGHT_BY: Codes =
    Codes { z: Code::EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8, y: Code::VEX_Vpsrld_ymm_ymm_imm8 };
pub(super) const RIGHT_SIGNED_BY: Codes =
    Codes { z: Code::EVEX_Vpsrad_zmm_k1z_zmmm512b32_imm8, y: Code::VEX_Vpsrad_ymm_ymm_imm8 };
pub(super) const MULLO: Codes =
    Codes { z: Code::EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpmulld_ymm_ymm_ymmm256 };
pub(super) const MIN_I: Codes =
    Codes { z: Code::EVEX_Vpminsd_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpminsd_ymm_ymm_ymmm256 };
pub(super) const MAX_I: Codes =
    Codes { z: Code::EVEX_Vpmaxsd_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpmaxsd_ymm_ymm_ymmm256 };
pub(super) const MIN_U: Codes =
    Codes { z: Code::EVEX_Vpminud_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpminud_ymm_ymm_ymmm256 };
pub(super) const MAX_U: Codes =
    Codes { z: Code::EVEX_Vpmaxud_zmm_k1z_zmm_zmmm512b32, y: Code::VEX_Vpmaxud_ymm_ymm_ymmm256 };
pub(super) const FROM_I32: Codes =
    Codes { z: Code::EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er, y: Code::VEX_Vcvtdq2ps_ymm_ymmm256 };
/// A load from the constants, which are aligned to dwords only.
pub(super) const LOAD: Codes =
    Codes { z: Code::EVEX_Vmovdqu32_zmm_k1z_zmmm512, y: Code::VEX_Vmovdqu_ymm_ymmm256 };
/// A store of lanes whose place is aligned to dwords only.
pub(super) const STORE: Codes =
    Codes { z: Code::EVEX_Vmovdqu32_zmmm512_k1z_zmm, y: Code::VEX_Vmovdqu_ymmm256_ymm };
pub(super) const SHUFFLE_BYTES: Codes =
    Codes { z: Code::EVEX_Vpshufb_zmm_k1z_zmm_zmmm512, y: Code::VEX_Vpshufb_ymm_ymm_ymmm256 };

/// AVX2 codes of several modules. Compares give lanes of ones or zeros; blends look at the highest bit of a lane.
pub(super) const EQUAL_Y: Code = Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256;
pub(super) const GREATER_Y: Code = Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256;
pub(super) const COMPARE_PS_Y: Code = Code::VEX_Vcmpps_ymm_ymm_ymmm256_imm8;
pub(super) const BLEND_Y: Code = Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm;
/// `!first & second`.
pub(super) const AND_NOT_Y: Code = Code::VEX_Vpandn_ymm_ymm_ymmm256;
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
