// SPDX-License-Identifier: MIT OR Apache-2.0
//! The definition of every row of the instruction table, written independently of the handlers.
//!
//! Each family has a table `ENTRIES` that names operations and, for each, its definition as a scalar function or a
//! check of its own. Instructions are encoded, decoded, lowered and run on random registers, EXEC, MODE and memory; the
//! whole state of the wave is compared, so a change of any other state is found too.
//!
//! INVARIANT: the coverage report is made of the same entries that the tests run, after they ran; a row without an entry
//! fails [`every_row_has_an_entry`].

mod atomics;
mod buffers;
mod compares;
mod control;
mod convert;
mod cross;
pub(crate) mod document;
mod dpp;
mod dual;
mod encode;
pub(crate) mod entry;
mod exact;
mod float16;
mod float32;
mod float64;
mod integer;
mod interpolate;
mod lab;
mod lanes;
mod lds;
mod matrix;
mod memory;
mod narrow;
mod operands;
mod packed;
mod place;
mod random;
mod scalar;
mod scalar_ops;
mod system;
mod typed;

use std::collections::BTreeMap;

use softgpu_isa::{EncodingFamily, Fmt, Op, info, rows};

use entry::{Check, Entry};
use lab::Lab;

/// The entries of each family.
const FAMILIES: [(&str, &[Entry]); 21] = [
    ("integer", integer::ENTRIES),
    ("narrow", narrow::ENTRIES),
    ("float32", float32::ENTRIES),
    ("float16", float16::ENTRIES),
    ("float64", float64::ENTRIES),
    ("convert", convert::ENTRIES),
    ("packed", packed::ENTRIES),
    ("matrix", matrix::ENTRIES),
    ("compares", compares::ENTRIES),
    ("cross", cross::ENTRIES),
    ("interpolation", interpolate::ENTRIES),
    ("scalar", scalar_ops::ENTRIES),
    ("control", control::ENTRIES),
    ("system", system::ENTRIES),
    ("memory", memory::ENTRIES),
    ("atomics", atomics::ENTRIES),
    ("lds", lds::ENTRIES),
    ("buffers", buffers::ENTRIES),
    ("typed", typed::ENTRIES),
    ("float32 functions", float32::FUNCTIONS),
    ("integer masks", integer::MASKS),
];

fn run(family: &str) {
    let (_, entries) = FAMILIES.iter().find(|(name, _)| *name == family).expect("a family");
    let mut lab = Lab::new();
    for entry in *entries {
        check(&mut lab, entry);
    }
}

fn check(lab: &mut Lab, entry: &Entry) {
    let row = info(entry.op);
    lab.begin(row);
    match &entry.check {
        Check::Lanes(definition) => lanes::check(lab, row, *definition),
        Check::Scalar(definition) => scalar::check(lab, row, *definition),
        Check::Own(procedure) => procedure(lab, row),
    }
    assert!(lab.ran() > 0, "{} ran no instruction", row.name);
}

macro_rules! family_tests {
    ($($test:ident $family:literal;)*) => {
        $(#[test]
        fn $test() {
            run($family);
        })*
    };
}

family_tests! {
    integer_operations_follow_their_definitions "integer";
    integer_mask_operations_follow_their_definitions "integer masks";
    narrow_operations_follow_their_definitions "narrow";
    f32_operations_follow_their_definitions "float32";
    f32_functions_follow_their_definitions "float32 functions";
    f16_operations_follow_their_definitions "float16";
    f64_operations_follow_their_definitions "float64";
    conversions_follow_their_definitions "convert";
    packed_operations_follow_their_definitions "packed";
    matrix_operations_follow_their_definitions "matrix";
    compares_follow_their_definitions "compares";
    cross_lane_operations_follow_their_definitions "cross";
    interpolations_follow_their_definitions "interpolation";
    scalar_operations_follow_their_definitions "scalar";
    branches_follow_their_definitions "control";
    system_operations_follow_their_definitions "system";
    loads_and_stores_follow_their_definitions "memory";
    atomics_follow_their_definitions "atomics";
    lds_operations_follow_their_definitions "lds";
    buffer_accesses_follow_their_definitions "buffers";
    typed_accesses_follow_their_definitions "typed";
}

/// Entries per operation.
fn entries() -> BTreeMap<Op, usize> {
    let mut found = BTreeMap::new();
    for entry in FAMILIES.iter().flat_map(|(_, entries)| *entries) {
        *found.entry(entry.op).or_default() += 1;
    }
    found
}

#[test]
fn every_row_has_an_entry() {
    let found = entries();
    let missing: Vec<&str> =
        rows().iter().filter(|row| !found.contains_key(&row.op)).map(|row| row.name).collect();
    assert!(missing.is_empty(), "{} rows have no semantic test: {missing:?}", missing.len());
}

/// For `cargo xtask isa-coverage`: runs every check, then prints one line per row, `row FORMAT MNEMONIC HANDLER TESTED`.
#[test]
#[ignore = "prints the coverage report that cargo xtask isa-coverage reads"]
fn print_coverage() {
    let mut lab = Lab::new();
    for entry in FAMILIES.iter().flat_map(|(_, entries)| *entries) {
        check(&mut lab, entry);
    }
    let found = entries();
    // The test runner may have begun the line.
    println!();
    for row in rows() {
        let format = row
            .columns
            .iter()
            .find(|c| c.family == EncodingFamily::Gfx11)
            .map_or(Fmt::Sopp, |c| c.codes[0].fmt);
        let has_handler = lab::executes(row);
        println!("row {format:?} {} {has_handler} {}", row.name, found.contains_key(&row.op));
    }
}
