// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--disassemble`: a kernel's machine code as text, from the code object alone.
//!
//! INVARIANT: what is listed is what can be reached from the kernel's entry by direct branches and by returning from
//! calls; functions that are called through registers are not followed.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Result, ensure};
use serde::Serialize;
use softgpu_isa::{Flags, Inst, Op, WaveSize, decode_for, info};
use stasis::code_object::{CodeObject, Kernel, LoadPlan};

/// A kernel's code.
#[derive(Debug, Serialize)]
pub struct Listing {
    kernel: String,
    target: String,
    lanes: u32,
    vgprs: u32,
    sgprs: u32,
    lds_bytes: u32,
    scratch_bytes: u32,
    argument_bytes: u32,
    instructions: Vec<Line>,
}

/// One instruction.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Line {
    /// Bytes from the start of the image.
    address: u64,
    /// Bytes from the kernel's entry, as messages about faults count.
    offset: i64,
    words: Vec<u32>,
    text: String,
    /// Its name, if a branch goes here.
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
    /// Where it branches to.
    #[serde(skip_serializing_if = "Option::is_none")]
    branches_to: Option<String>,
}

/// What stands at an address: an instruction, or a word that is none.
type Found = (Vec<u32>, Option<Inst>);

impl Listing {
    /// The code of the kernel with this name.
    pub fn new(object: &CodeObject, name: &str) -> Result<Self> {
        let isa = object.isa();
        let is_gfx11 = match isa.target() {
            Some(target) => target.gfx11_code,
            None => isa.generic_version() > 0 && isa.name().starts_with("gfx11"),
        };
        ensure!(is_gfx11, "--disassemble knows the instructions of gfx11; this code object is for {isa}");
        let kernel = object.kernel(name)?;
        let metadata = &kernel.metadata;
        let size = if metadata.wavefront_size == 64 { WaveSize::W64 } else { WaveSize::W32 };
        Ok(Self {
            kernel: kernel.name.clone(),
            target: isa.to_string(),
            lanes: metadata.wavefront_size,
            vgprs: metadata.vgprs,
            sgprs: metadata.sgprs,
            lds_bytes: metadata.group_bytes,
            scratch_bytes: metadata.private_bytes,
            argument_bytes: metadata.kernarg_bytes,
            instructions: lines(&reach(object.plan(), kernel, size), kernel.entry_offset, size),
        })
    }
}

/// Up to three words of executable memory at an image offset.
fn fetch(plan: &LoadPlan, at: u64) -> Vec<u32> {
    let bytes = plan.segments().iter().filter(|segment| segment.access.execute).find_map(|segment| {
        let start = usize::try_from(at.checked_sub(segment.offset)?).ok()?;
        segment.contents.get(start..)
    });
    bytes
        .unwrap_or_default()
        .as_chunks::<4>()
        .0
        .iter()
        .take(3)
        .map(|word| u32::from_le_bytes(*word))
        .collect()
}

/// Where a direct branch at `at` goes.
fn target(inst: &Inst, at: u64) -> Option<u64> {
    let through_register = matches!(inst.op, Op::S_SETPC_B64 | Op::S_SWAPPC_B64 | Op::S_RFE_B64);
    let direct = info(inst.op).any(Flags::BRANCH) && !through_register;
    let next = at.wrapping_add(u64::from(inst.size));
    direct.then(|| next.wrapping_add_signed(i64::from(inst.imm) * 4))
}

fn goes_on(inst: &Inst) -> bool {
    let ends =
        [Op::S_BRANCH, Op::S_SETPC_B64, Op::S_RFE_B64, Op::S_ENDPGM, Op::S_ENDPGM_SAVED, Op::S_CODE_END];
    !ends.contains(&inst.op)
}

fn reach(plan: &LoadPlan, kernel: &Kernel, size: WaveSize) -> BTreeMap<u64, Found> {
    let mut found = BTreeMap::new();
    let mut open = vec![kernel.entry_offset];
    while let Some(mut at) = open.pop() {
        while !found.contains_key(&at) {
            let mut words = fetch(plan, at);
            let inst = decode_for(&words, size).ok();
            words.truncate(inst.map_or(1, |inst| usize::from(inst.size) / 4));
            if words.is_empty() {
                break;
            }
            found.insert(at, (words, inst));
            let Some(inst) = inst else { break };
            open.extend(target(&inst, at));
            if !goes_on(&inst) {
                break;
            }
            at += u64::from(inst.size);
        }
    }
    found
}

fn lines(found: &BTreeMap<u64, Found>, entry: u64, size: WaveSize) -> Vec<Line> {
    let branch = |(at, (_, inst)): (&u64, &Found)| target(inst.as_ref()?, *at);
    let mut labels: BTreeMap<u64, String> =
        found.iter().filter_map(branch).map(|at| (at, String::new())).collect();
    for (number, name) in labels.values_mut().enumerate() {
        *name = format!("L{number}");
    }
    found
        .iter()
        .map(|(&address, (words, inst))| Line {
            address,
            offset: address.wrapping_sub(entry).cast_signed(),
            words: words.clone(),
            text: match inst {
                Some(inst) => inst.text(size).to_string(),
                None => words.iter().map(|word| format!(".long {word:#010x}")).collect(),
            },
            label: labels.get(&address).cloned(),
            branches_to: inst
                .as_ref()
                .and_then(|inst| target(inst, address))
                .and_then(|at| labels.get(&at).cloned()),
        })
        .collect()
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} for {}: waves of {}, {} VGPRs, {} SGPRs, {} B of LDS, {} B of scratch, {} B of arguments",
            self.kernel,
            self.target,
            self.lanes,
            self.vgprs,
            self.sgprs,
            self.lds_bytes,
            self.scratch_bytes,
            self.argument_bytes
        )?;
        let mut next = None;
        for line in &self.instructions {
            if next.is_some_and(|next| next != line.address) {
                writeln!(f, "  ...")?;
            }
            next = Some(line.address + 4 * line.words.len() as u64);
            if let Some(label) = &line.label {
                writeln!(f, "{label}:")?;
            }
            let sign = if line.offset < 0 { '-' } else { '+' };
            let words: Vec<_> = line.words.iter().map(|word| format!("{word:08x}")).collect();
            let (address, offset) = (line.address, line.offset.unsigned_abs());
            write!(f, "  {address:#x} {sign}{offset:#06x}  {:26}  {}", words.join(" "), line.text)?;
            match &line.branches_to {
                Some(label) => writeln!(f, "  ; {label}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &[(u64, &[u32])]) -> BTreeMap<u64, Found> {
        code.iter()
            .map(|(at, words)| (*at, (words.to_vec(), decode_for(words, WaveSize::W32).ok())))
            .collect()
    }

    #[test]
    fn branch_targets_get_labels_in_order() {
        // s_cbranch_scc1 over s_nop; s_branch back to the first.
        let code: [(u64, &[u32]); 4] =
            [(0x100, &[0xbfa2_0001]), (0x104, &[0xbf80_0000]), (0x108, &[0xbfa0_fffd]), (0x10c, &[0])];
        let lines = lines(&found(&code), 0x104, WaveSize::W32);
        let shown: Vec<_> = lines
            .iter()
            .map(|line| (line.offset, line.text.as_str(), line.label.as_deref(), line.branches_to.as_deref()))
            .collect();
        assert_eq!(
            shown,
            [
                (-4, "s_cbranch_scc1 1", Some("L0"), Some("L1")),
                (0, "s_nop 0", None, None),
                (4, "s_branch 65533", Some("L1"), Some("L0")),
                (8, ".long 0x00000000", None, None),
            ]
        );
    }
}
