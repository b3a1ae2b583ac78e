// SPDX-License-Identifier: MIT OR Apache-2.0
// The second-level trap handler: reports why a wave trapped to the driver, and halts the wave.
//
// The driver's own handler (Linux, cwsr_trap_handler_gfx9.asm, _gfx10.asm, _gfx12.asm) comes first and jumps here.
//
// At entry
//   ttmp0, ttmp1   program counter; ttmp1 also has the trap id ([23:16], gfx12 [31:28]) and, before gfx12, whether the
//                  host trapped the wave ([24]). The counter is at the instruction that trapped
//   ttmp12         STATUS (gfx12: STATE_PRIV)
//   ttmp11[23]     whether a debugger is attached (gfx9.4.3: ttmp13[23])
//   ttmp2, ttmp3   free
//
// On leaving a wave that halts, for debuggers and for the runtime (ROCdbgapi, architecture.cpp)
//   ttmp6          [28:25] trap id, [29] whether the wave was halted before, [30] set
//   ttmp7, ttmp11[22:7]   where the wave stood, where a halted wave must not stay at its own instruction (PARKED;
//                  gfx12: ttmp10 in place of ttmp7)
//
// The message that the driver passes on (kfd_int_process_v9.c, _v11.c): M0 = doorbell | causes << 10. The causes are bits
// of kfd_ioctl.h's KFD_EC_MASK: abort 0, trap 1, arithmetic 2, illegal instruction 3, memory 4, aperture 5.

.set GENERATION, .amdgcn.gfx_generation_number
.set MINOR, .amdgcn.gfx_generation_minor

.set TRAP_ABORT, 2
.set TRAP_DEBUG, 3
.set CAUSE_ABORT, 10
.set CAUSE_TRAP, 11
.set CAUSE_ARITHMETIC, 12
.set CAUSE_ILLEGAL, 13
.set CAUSE_MEMORY, 14
.set CAUSE_APERTURE, 15

.set GFX12, GENERATION >= 12
.set GFX940, GENERATION == 9 && MINOR >= 4
// Instruction prefetch of these runs past a halted wave, so that it is halted at a place of this handler.
.set PARKED, GENERATION >= 11 || (GENERATION == 10 && MINOR < 3) || (GENERATION == 9 && MINOR < 4)

.if GFX12
  .set TRAP_ID, 28 | 4 << 16
  .set HALT, 14
.else
  .set TRAP_ID, 16 | 8 << 16
  .set HALT, 13
.endif

.text
trap_entry:
  s_bfe_u32         ttmp2, ttmp1, TRAP_ID
  s_cbranch_scc0    report
.if !GFX12
  // A trap by the host is not an instruction.
  s_bitcmp1_b32     ttmp1, 24
  s_cbranch_scc1    is_debug_trap
.endif
  s_add_u32         ttmp0, ttmp0, 4
  s_addc_u32        ttmp1, ttmp1, 0
is_debug_trap:
  s_cmp_eq_u32      ttmp2, TRAP_DEBUG
  s_cbranch_scc0    report
.if GFX940
  s_bitcmp1_b32     ttmp13, 23
.else
  s_bitcmp1_b32     ttmp11, 23
.endif
  s_cbranch_scc0    leave

report:
  s_min_u32         ttmp2, ttmp2, 15
  s_lshl_b32        ttmp2, ttmp2, 25
  s_andn2_b32       ttmp6, ttmp6, 15 << 25 | 1 << 29
  s_or_b32          ttmp6, ttmp6, ttmp2
  s_bfe_u32         ttmp2, ttmp12, HALT | 1 << 16
  s_lshl_b32        ttmp2, ttmp2, 29
  s_or_b32          ttmp6, ttmp6, ttmp2

  // Which queue: its doorbell.
.if GENERATION >= 11
  s_sendmsg_rtn_b32 ttmp3, sendmsg(MSG_RTN_GET_DOORBELL)
  .if GFX12
  s_wait_kmcnt      0
  .else
  s_waitcnt         lgkmcnt(0)
  .endif
.else
  // The answer is put into EXEC, and has bit 31 clear.
  s_mov_b32         ttmp2, exec_lo
  s_mov_b32         ttmp3, exec_hi
  s_mov_b32         exec_lo, 1 << 31
  s_sendmsg         sendmsg(MSG_GET_DOORBELL)
await_doorbell:
  s_nop             7
  s_bitcmp1_b32     exec_lo, 31
  s_cbranch_scc1    await_doorbell
  s_mov_b32         exec_hi, ttmp3
  s_mov_b32         ttmp3, exec_lo
  s_mov_b32         exec_lo, ttmp2
.endif
  s_and_b32         ttmp3, ttmp3, 0x3ff

  // Why.
.if GFX12
  .set MEMORY_ERROR, 12
  .set MEMORY, 4
  .set ILLEGAL, 6
  s_getreg_b32      ttmp2, hwreg(HW_REG_EXCP_FLAG_PRIV)
.else
  .set MEMORY_ERROR, 28
  .set MEMORY, 8
  .set ILLEGAL, 11
  s_getreg_b32      ttmp2, hwreg(HW_REG_TRAPSTS)
.endif
  s_bitcmp1_b32     ttmp2, MEMORY_ERROR
  s_cbranch_scc1    memory
  s_bitcmp1_b32     ttmp2, MEMORY
  s_cbranch_scc0    illegal
  s_bitset1_b32     ttmp3, CAUSE_APERTURE
  s_branch          illegal
memory:
  s_bitset1_b32     ttmp3, CAUSE_MEMORY
illegal:
  s_bitcmp1_b32     ttmp2, ILLEGAL
  s_cbranch_scc0    arithmetic
  s_bitset1_b32     ttmp3, CAUSE_ILLEGAL
arithmetic:
  // Only of the exceptions that the wave asked for.
.if GFX12
  s_getreg_b32      ttmp2, hwreg(HW_REG_EXCP_FLAG_USER, 0, 7)
  s_getreg_b32      ttmp13, hwreg(HW_REG_TRAP_CTRL, 0, 7)
  s_and_b32         ttmp2, ttmp2, ttmp13
.else
  s_and_b32         ttmp2, ttmp2, 0x7f
  s_getreg_b32      ttmp7, hwreg(HW_REG_MODE, 12, 7)
  s_and_b32         ttmp2, ttmp2, ttmp7
.endif
  s_cbranch_scc0    abort
  s_bitset1_b32     ttmp3, CAUSE_ARITHMETIC
abort:
  s_bfe_u32         ttmp2, ttmp6, 25 | 4 << 16
  s_cmp_eq_u32      ttmp2, TRAP_ABORT
  s_cbranch_scc0    any
  s_bitset1_b32     ttmp3, CAUSE_ABORT
any:
  s_lshr_b32        ttmp2, ttmp3, 10
  s_cbranch_scc1    send
.if GFX12
  // A trap, or what only a debugger asks for: the begin or end of a wave, a single step, an address. These flags can be set
  // where the wave was stopped for something else, to be saved for example: then it goes on.
  s_bfe_u32         ttmp2, ttmp6, 25 | 4 << 16
  s_cbranch_scc1    trap
  s_getreg_b32      ttmp13, hwreg(HW_REG_TRAP_CTRL)
  s_bitcmp1_b32     ttmp13, 9
  s_cbranch_scc1    trap
  s_getreg_b32      ttmp2, hwreg(HW_REG_EXCP_FLAG_PRIV)
  s_bitcmp1_b32     ttmp2, 8
  s_cbranch_scc1    trap
  s_bitcmp1_b32     ttmp13, 8
  s_cbranch_scc0    address
  s_bitcmp1_b32     ttmp2, 9
  s_cbranch_scc1    trap
address:
  s_bitcmp1_b32     ttmp13, 7
  s_cbranch_scc0    leave
  s_and_b32         ttmp2, ttmp2, 15
  s_cbranch_scc0    leave
trap:
.endif
  s_bitset1_b32     ttmp3, CAUSE_TRAP
send:
  s_mov_b32         ttmp2, m0
  s_mov_b32         m0, ttmp3
  s_nop             0
  s_sendmsg         sendmsg(MSG_INTERRUPT)
.if GFX12
  s_wait_kmcnt      0
.else
  s_waitcnt         lgkmcnt(0)
.endif
  s_mov_b32         m0, ttmp2

.if PARKED
  .if GFX12
  s_mov_b32         ttmp10, ttmp0
  .else
  s_mov_b32         ttmp7, ttmp0
  .endif
  s_and_b32         ttmp1, ttmp1, 0xffff
  s_lshl_b32        ttmp1, ttmp1, 7
  s_andn2_b32       ttmp11, ttmp11, 0xffff << 7
  s_or_b32          ttmp11, ttmp11, ttmp1
  s_getpc_b64       [ttmp0, ttmp1]
here:
  s_add_u32         ttmp0, ttmp0, parked - here
  s_addc_u32        ttmp1, ttmp1, 0
.else
  s_mov_b32         ttmp7, 0
.endif
  s_bitset1_b32     ttmp6, 30
  s_bitset1_b32     ttmp12, HALT
.if !GFX12
  // SKIP_EXPORT, by which a debugger knows that a handler halted the wave.
  s_bitset1_b32     ttmp12, 18
.endif
.if GFX940
  s_bitcmp1_b32     ttmp11, 31
  s_cbranch_scc1    leave
  s_mov_b32         ttmp4, 0
  s_mov_b32         ttmp5, 0
  s_bitset0_b32     ttmp6, 31
  s_bitset1_b32     ttmp11, 31
.elseif GFX12
  s_bitcmp1_b32     ttmp8, 31
  s_cbranch_scc1    leave
  s_mov_b32         ttmp4, 0
  s_mov_b32         ttmp5, 0
  s_bitset1_b32     ttmp8, 31
.endif

leave:
  // What the driver's handler keeps for us to put back: the state of a replayed instruction, the scheduling mode.
.if GFX940
  s_lshr_b32        ttmp2, ttmp13, 26 - 15
  s_and_b32         ttmp2, ttmp2, 0x1f8000
  s_setreg_b32      hwreg(HW_REG_IB_STS), ttmp2
.elseif GENERATION == 9
  s_lshr_b32        ttmp2, ttmp11, 26 - 15
  s_and_b32         ttmp2, ttmp2, 0x1f8000
  s_setreg_b32      hwreg(HW_REG_IB_STS), ttmp2
.elseif GENERATION == 10 && MINOR < 3
  s_lshr_b32        ttmp3, ttmp11, 24 - 15
  s_and_b32         ttmp3, ttmp3, 0x3f8000
  s_lshr_b32        ttmp2, ttmp11, 31 - 25
  s_and_b32         ttmp2, ttmp2, 1 << 25
  s_or_b32          ttmp2, ttmp2, ttmp3
  s_setreg_b32      hwreg(HW_REG_IB_STS), ttmp2
.elseif GFX12
  s_bfe_u32         ttmp2, ttmp1, 26 | 2 << 16
  s_cbranch_scc0    mode_is_back
  s_setreg_b32      hwreg(26, 0, 2), ttmp2
mode_is_back:
.endif
  // EXECZ and VCCZ follow writes of EXEC and VCC only.
  s_and_b64         exec, exec, exec
  s_and_b64         vcc, vcc, vcc
.if GFX12
  // All but BARRIER_COMPLETE, which may have changed meanwhile.
  s_setreg_b32      hwreg(HW_REG_STATE_PRIV, 0, 2), ttmp12
  s_lshr_b32        ttmp12, ttmp12, 3
  s_setreg_b32      hwreg(HW_REG_STATE_PRIV, 3, 29), ttmp12
.else
  s_setreg_b32      hwreg(HW_REG_STATUS), ttmp12
.endif
  s_rfe_b64         [ttmp0, ttmp1]

.if PARKED
parked:
  s_trap            TRAP_ABORT
  s_branch          parked
.endif
.if GENERATION >= 11
  // The prefetch reads on.
  .fill 64, 4, 0xbf9f0000
.endif
