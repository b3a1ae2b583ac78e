// SPDX-License-Identifier: MIT OR Apache-2.0
//! `docs/hardware.md` has a row for every chip of the target table, and the row says what the code does.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use queues::sdma::Generation;
use queues::target::{CriuSupport, TARGETS, Target};
use stasis::checkpoint::LAST_KFD_MINOR_WITHOUT_MES;

const HEAD: &str = "\
| chip | device kernels, trap handler | private memory | PM4 dispatch | SDMA | host path flushed by SDMA | end-of-pipe buffers | layout of saved waves | preempted checkpoint |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
";

fn yes_or_no(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn sdma(target: &Target) -> String {
    let Some(generation) = Generation::of(target) else { return "none: kernels copy".to_owned() };
    match target.sdma_submission_dwords {
        1 => format!("{generation:?}"),
        dwords => format!("{generation:?}, at least {dwords} dwords at a time"),
    }
}

fn preempted(target: &Target) -> String {
    match (target.mes, target.criu) {
        (true, _) => format!("refused up to KFD 1.{LAST_KFD_MINOR_WITHOUT_MES}, then tried first"),
        (false, CriuSupport::Full) => "admitted".to_owned(),
        (false, CriuSupport::WholeChip) => "refused".to_owned(),
        (false, _) => "not known".to_owned(),
    }
}

/// What the code says of a chip.
fn row(target: &Target) -> String {
    let name = target.name;
    let built = match (device_lib::object_for(name).is_ok(), device_lib::trap_handler_for(name).is_ok()) {
        (true, true) => "built in",
        (false, false) => "neither",
        (kernels, _) => ["trap handler only", "kernels only"][usize::from(kernels)],
    };
    let [scratch, pm4, flush] =
        [target.scratch.is_some(), target.pm4_dispatch, target.sdma.is_some() && target.sdma_hdp_flush]
            .map(yes_or_no);
    let (sdma, layout, preempted) = (sdma(target), target.save_layout, preempted(target));
    let eop = if target.aql_eop { "PM4, AQL" } else { "PM4" };
    format!(
        "| {name} | {built} | {scratch} | {pm4} | {sdma} | {flush} | {eop} | {layout:?} | {preempted} |\n"
    )
}

fn text_of(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

#[test]
fn every_chip_has_the_row_that_the_code_gives_it() {
    let wanted: String = TARGETS.iter().map(row).collect();
    let wanted = format!("{HEAD}{wanted}\n");
    assert!(text_of("docs/hardware.md").contains(&wanted), "docs/hardware.md has not:\n{wanted}");
}

#[test]
fn every_chip_is_spoken_of_below_the_table() {
    let text = text_of("docs/hardware.md");
    let (_, below) = text.split_once("## Chip by chip").unwrap();
    for target in TARGETS {
        let is_named = below.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == target.name);
        assert!(is_named, "docs/hardware.md, chip by chip, has no {target}");
    }
}

#[test]
fn readme_points_at_it_and_claims_no_run_on_hardware() {
    let readme = text_of("README.md");
    assert!(readme.contains("(docs/hardware.md)"));
    assert!(readme.contains("Nothing here has run on AMD hardware."));
}
