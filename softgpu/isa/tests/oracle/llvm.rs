// SPDX-License-Identifier: MIT OR Apache-2.0
//! LLVM 19's gfx1100 disassembler as a process, and the comparison of this crate's decoder with it.
//!
//! INVARIANT: without the tool a test fails and says what to install; it never passes.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;

use softgpu_isa::{DecodeError, Enc, Inst, Op, WaveSize, decode_strict};

/// `s_nop 0x123`: several follow each instruction; the number that remains tells how many dwords the instruction took.
pub const PAD: u32 = 0xbf80_0123;
const PADS: usize = 3;
/// Two instructions that separate the outputs of two blocks.
const MARK: [u32; 2] = [0xbf80_7ffe, 0xbf82_5a5a];
const MARK_TEXT: [&str; 2] = ["s_nop 0x7ffe", "s_sethalt 0x5a5a"];

/// Runs `program` with `input` and returns its standard output.
pub fn run(program: &str, package: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {program}: {error}; install the package {package}"));
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let input = input.to_owned();
    let writer = thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("the child's output is readable");
    // If the child stops reading early, its output shows that.
    let _ = writer.join();
    String::from_utf8(output.stdout).expect("LLVM prints UTF-8")
}

fn block(input: &mut String, words: &[u32]) {
    let bytes: Vec<String> =
        words.iter().flat_map(|word| word.to_le_bytes()).map(|byte| format!("{byte:#04x}")).collect();
    writeln!(input, "[{}]", bytes.join(",")).expect("writing to a string");
}

/// The text and length in bytes of the first instruction of each block; `None` if LLVM refuses it. The words after the
/// first instruction of a block are valid one-dword instructions, or its length is not meaningful.
pub fn disassemble(blocks: &[Vec<u32>], attribute: Option<&str>) -> Vec<Option<(String, usize)>> {
    let mut input = String::new();
    for words in blocks {
        block(&mut input, words);
        block(&mut input, &MARK);
    }
    let mut arguments = vec!["--arch=amdgcn", "--mcpu=gfx1100", "--disassemble"];
    arguments.extend(attribute);
    let output = run("llvm-mc-19", "llvm-19", &arguments, &input);
    let mut lines =
        output.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('.')).peekable();
    let mut results = Vec::with_capacity(blocks.len());
    for words in blocks {
        let mut texts = Vec::new();
        loop {
            let line = lines.next().expect("LLVM prints the mark after each block");
            if line == MARK_TEXT[0] && lines.peek() == Some(&MARK_TEXT[1]) {
                lines.next();
                break;
            }
            texts.push(line);
        }
        results.push(
            texts
                .first()
                .filter(|text| !text.contains("/*Invalid") && !text.contains("/* Invalid"))
                .filter(|text| !text.contains("is not supported"))
                .map(|text| (without_sext(text), 4 * (words.len() + 1 - texts.len()))),
        );
    }
    results
}

/// LLVM prints the negation bit of an integer source as `sext()`, which only SDWA (not on gfx11) has.
fn without_sext(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("sext(") {
        let (inner, tail) = after.split_once(')').unwrap_or((after, ""));
        out.push_str(before);
        out.push_str(inner);
        rest = tail;
    }
    out + rest
}

/// One disagreement.
#[derive(Debug)]
pub struct Mismatch {
    pub words: [u32; 3],
    pub ours: String,
    pub theirs: String,
}

/// The result of a comparison.
#[derive(Debug, Default)]
pub struct Report {
    /// Words that LLVM and this crate decode alike.
    pub agreed: usize,
    /// Of these, how often each operation occurred in each encoding.
    pub per_op: HashMap<(Enc, Op), usize>,
    /// Words that both refuse.
    pub refused: usize,
    /// Words that LLVM decodes in formats that are not for compute.
    pub graphics: usize,
    /// Words that name high halves of registers, which LLVM decodes only with `+real-true16`.
    pub true16: usize,
    pub mismatches: Vec<Mismatch>,
}

/// Compares this crate's decoding of each case with LLVM's.
pub fn compare(cases: &[[u32; 3]], wave: WaveSize) -> Report {
    let mut report = Report::default();
    let attribute = (wave == WaveSize::W64).then_some("--mattr=+wavefrontsize64");
    for chunk in cases.chunks(50_000) {
        let blocks: Vec<Vec<u32>> = chunk
            .iter()
            .map(|words| {
                let taken = decode_strict(words, wave).map_or(3, |inst| usize::from(inst.size) / 4);
                let pads = std::iter::repeat_n(PAD, PADS);
                words[..taken].iter().copied().chain(pads).collect()
            })
            .collect();
        for (words, theirs) in chunk.iter().zip(disassemble(&blocks, attribute)) {
            compare_one(&mut report, words, wave, theirs);
        }
    }
    report
}

fn compare_one(report: &mut Report, words: &[u32; 3], wave: WaveSize, theirs: Option<(String, usize)>) {
    let mut differ = |ours: String, theirs: String| {
        report.mismatches.push(Mismatch { words: *words, ours, theirs });
    };
    match (decode_strict(words, wave), theirs) {
        (Ok(inst), Some((text, length))) => {
            let ours = inst.text(wave).to_string();
            if ours == text && usize::from(inst.size) == length {
                report.agreed += 1;
                let halves = [Some(inst.op), inst.second.map(|second| second.op)];
                for op in halves.into_iter().flatten() {
                    *report.per_op.entry((inst.enc, op)).or_default() += 1;
                }
            } else {
                differ(format!("{ours} ({} bytes)", inst.size), format!("{text} ({length} bytes)"));
            }
        }
        (Ok(inst), None) if is_true16(&inst) => report.true16 += 1,
        (Ok(inst), None) => differ(inst.to_string(), "invalid".to_owned()),
        (Err(DecodeError::NotCompute { .. }), _) => report.graphics += 1,
        (Err(_), Some((text, _))) if is_exempt(words, &text) => report.graphics += 1,
        (Err(_), None) => report.refused += 1,
        (Err(error), Some((text, _))) => differ(error.to_string(), text),
    }
}

/// What LLVM accepts and this crate refuses on purpose: a read-only value as scalar destination, the graphics-only wave
/// id, and the all-zero word, which LLVM names `v_illegal`; a literal besides DPP, for which the encoding has no room.
fn is_exempt(words: &[u32; 3], text: &str) -> bool {
    let has_literal = words[1] >> 9 & 0x1ff == 255 || words[1] >> 18 & 0x1ff == 255;
    if text.contains("_e64_dpp ") && has_literal {
        return true;
    }
    let destination = text.split_once(' ').map_or("", |(_, operands)| operands);
    text == "v_illegal" || text.contains("src_pops_exiting_wave_id") || destination.starts_with("src_")
}

/// Whether the hardware's high-half selection is what makes LLVM refuse the word by default.
fn is_true16(inst: &Inst) -> bool {
    let is_short = matches!(inst.enc, Enc::Vop1 | Enc::Vop2 | Enc::Vopc);
    (is_short && inst.op_sel != 0) || (inst.op == Op::V_MOV_B16 && inst.enc == Enc::Vop3)
}

/// Fails with the first mismatches of each mnemonic, if there are any.
pub fn assert_agrees(report: &Report) {
    if report.mismatches.is_empty() {
        return;
    }
    let mut seen = std::collections::BTreeMap::<String, usize>::new();
    let mut text = String::new();
    for Mismatch { words, ours, theirs } in &report.mismatches {
        let mnemonic = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
        let key = if ours.starts_with("Illegal") { mnemonic(theirs) } else { mnemonic(ours) };
        let count = seen.entry(key).or_default();
        *count += 1;
        if *count <= 1 {
            writeln!(text, "{words:08x?}\n  ours   {ours}\n  theirs {theirs}").expect("writing to a string");
        }
    }
    panic!(
        "{} of {} words differ:\n{text}",
        report.mismatches.len(),
        report.mismatches.len() + report.agreed
    );
}

/// A small deterministic generator (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    pub fn pick(&mut self, values: &[u64]) -> u64 {
        values[self.below(values.len() as u64) as usize]
    }
}
