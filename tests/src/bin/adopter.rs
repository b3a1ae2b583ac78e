// SPDX-License-Identifier: MIT OR Apache-2.0
//! Saves labelled buffers, or adopts them and says what they are: `adopter save DIR`, `adopter adopt DIR [OLD=NEW…]`.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use stasis::checkpoint::SaveOptions;
use stasis::{AgentMap, Buffer, Runtime};
use stasis_tests::gpu::Numbers;

const MEBI: usize = 1 << 20;

/// The contents of a buffer, by its number.
fn contents(seed: u64, bytes: usize) -> Vec<u8> {
    Numbers(seed).take(bytes).map(|number| (number >> 11) as u8).collect()
}

fn bytes_of(buffer: &Buffer) -> Result<Vec<u8>> {
    let mut bytes = vec![0; buffer.len() as usize];
    buffer.download(0, &mut bytes)?;
    Ok(bytes)
}

fn save(runtime: &Runtime, directory: &Path) -> Result<()> {
    let agent = runtime.agent(0).context("no agent")?;
    let last = runtime.agents().pop().context("no agent")?;
    let made = [
        ("weights", agent.vram().alloc(5 * MEBI as u64 + 100)?, "f4 1310745"),
        ("other agent's", last.vram().alloc(MEBI as u64)?, ""),
        ("host", runtime.gtt().alloc(3000)?, "u1 3000"),
        ("zeros", agent.vram().alloc(MEBI as u64)?, ""),
        ("fine", agent.fine_vram().alloc(4096)?, ""),
    ];
    let unlabelled = agent.vram().alloc(MEBI as u64)?;
    unlabelled.upload(0, &[7; MEBI])?;
    for (seed, (label, buffer, layout)) in (1..).zip(&made) {
        buffer.set_label(label, layout)?;
        let filled = if *label == "zeros" { vec![0; MEBI] } else { contents(seed, buffer.len() as usize) };
        buffer.upload(0, &filled)?;
    }
    ensure!(made[0].1.set_label("host", "").is_err(), "two buffers with one label");
    ensure!(made[0].1.set_label("", "").is_err() && made[0].1.set_label("a\nb", "").is_err(), "no label");
    // A buffer that names another by its address.
    made[2].1.upload(0, &made[0].1.va().to_le_bytes())?;
    // Memory that others may hold is saved as any other; it is not closed for that.
    let shared = made[4].1.export()?;
    let alias = runtime.import(&shared, &agent)?;
    runtime.save(directory, &SaveOptions::default())?;
    // The process runs on, and its buffers are what they were.
    ensure!(bytes_of(&made[0].1)? == contents(1, made[0].1.len() as usize), "the process's own contents");
    alias.upload(0, &[9; 16])?;
    ensure!(bytes_of(&made[4].1)?[..16] == [9; 16], "memory is shared as before");
    println!(
        "saved {}",
        made.iter().map(|(_, buffer, _)| format!("{:#x}", buffer.va())).collect::<Vec<_>>().join(" ")
    );
    Ok(())
}

fn adopt(runtime: &Runtime, directory: &Path, agents: &AgentMap) -> Result<()> {
    let adopted = runtime.adopt(directory, agents)?;
    let names = ["weights", "other agent's", "host", "zeros", "fine"];
    ensure!(
        adopted.keys().map(String::as_str).collect::<std::collections::BTreeSet<_>>() == names.into(),
        "{adopted:?}"
    );
    for (seed, label) in (1..).zip(names) {
        let buffer = &adopted[label].buffer;
        let mut expected = contents(seed, buffer.len() as usize);
        match label {
            "zeros" => expected.fill(0),
            "host" => expected[..8].copy_from_slice(&adopted["weights"].buffer.va().to_le_bytes()),
            _ => {}
        }
        ensure!(bytes_of(buffer)? == expected, "{label} has other contents");
    }
    ensure!(adopted["weights"].buffer.len() == 5 * MEBI as u64 + 100, "a length");
    ensure!(adopted["host"].buffer.label()? == Some(("host".to_owned(), "u1 3000".to_owned())), "a layout");
    ensure!(adopted["host"].agent.is_none() && adopted["host"].layout == "u1 3000", "what it is");
    ensure!(adopted["weights"].agent == Some(agents.get(&0).copied().unwrap_or(0)), "its agent");
    ensure!(runtime.adopt(directory, agents).is_err(), "adopted twice");
    println!("adopted {}", names.map(|label| format!("{:#x}", adopted[label].buffer.va())).join(" "));
    Ok(())
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [verb, directory, map @ ..] = &words[..] else { bail!("adopter save|adopt DIR [OLD=NEW…]") };
    let runtime = Runtime::open_default()?;
    match verb.as_str() {
        "save" => save(&runtime, Path::new(directory)),
        "adopt" => {
            let place = |word: &String| {
                let (old, new) = word.split_once('=')?;
                Some((old.parse().ok()?, new.parse().ok()?))
            };
            let agents = map.iter().map(place).collect::<Option<AgentMap>>().context("OLD=NEW")?;
            adopt(&runtime, Path::new(directory), &agents)
        }
        _ => bail!("{verb} is not understood"),
    }
}
