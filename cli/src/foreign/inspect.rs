// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `stasis inspect` says of the devices in a checkpoint of a program under `stasis run`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;
use stasis::criu::{Manifest, OpenDirectory};

use crate::output::{counted, line};
use stasis_criu_foreign::{Description, Memory, Place};

/// The places of memory, and what they are called.
const PLACES: [(&str, &str); 3] = [
    ("task", "in CRIU's images"),
    ("beside", "of processes, beside them"),
    ("here", "of no process, beside them"),
];
/// Digits of the random part of a name.
const DIGITS: usize = 16;

/// The devices of a checkpoint.
#[derive(Debug, Serialize)]
pub struct Devices {
    /// The file that describes the devices.
    #[serde(flatten)]
    pub description: Description,
    /// Bytes of the executors' states, in the order of the clients.
    pub state_bytes: Vec<u64>,
    /// Memory by where its bytes are and what it is for.
    pub sums: Vec<Sum>,
}

/// Memory of one kind in one place.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// `task`: among CRIU's images. `beside`: a task has it, and it is in the file of contents. `here`: there, and no task has it.
    pub place: &'static str,
    /// What it is for, as its name says: `vram`, `gtt`, `userptr`, ….
    pub kind: String,
    /// How many there are.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of them in the file of contents.
    pub stored_bytes: u64,
}

impl Devices {
    /// Reads what the manifest names; `None` for a checkpoint of other processes.
    ///
    /// # Errors
    /// As [`Description::read`], and when the state of a client is missing.
    pub fn read(directory: &OpenDirectory, manifest: &Manifest) -> Result<Option<Self>> {
        let Some(name) = &manifest.foreign else { return Ok(None) };
        let description = Description::read(directory, name)?;
        let state_bytes = description.clients.iter().map(|client| {
            let found = directory.file(&client.state)?.metadata();
            Ok(found.with_context(|| format!("Cannot look at {}", client.state))?.len())
        });
        let state_bytes = state_bytes.collect::<Result<_>>()?;
        Ok(Some(Self { sums: sums(&description.memories), state_bytes, description }))
    }

    /// The same as prose.
    pub fn describe(&self, text: &mut String) {
        let pids: Vec<_> = self.description.processes.iter().map(i32::to_string).collect();
        line!(text, "  processes {}", pids.join(", "));
        let run = &self.description.run;
        line!(text, "Devices of `stasis run`: {}, files of the machine in {}", run.devices, run.directory);
        for (client, state) in self.description.clients.iter().zip(&self.state_bytes) {
            let (queues, waves) = (counted(client.queues.into(), "queue"), counted(client.waves, "wave"));
            let waits = counted(client.waits.into(), "wait");
            line!(
                text,
                "  process {}: {queues}, {waves} in the middle of kernels, {waits} for events, a state of {state} bytes",
                client.pid,
            );
        }
        for (place, title) in PLACES {
            let of_place = || self.sums.iter().filter(|sum| sum.place == place);
            let (count, bytes) =
                of_place().fold((0, 0), |(count, bytes), sum| (count + sum.count, bytes + sum.bytes));
            line!(text, "  memory {title}: {count} with {bytes} bytes");
            for sum in of_place() {
                let stored = match place {
                    "beside" | "here" => format!(", {} of them stored", sum.stored_bytes),
                    _ => String::new(),
                };
                line!(text, "    {} {}: {} bytes{stored}", sum.count, sum.kind, sum.bytes);
            }
        }
    }
}

fn sums(memories: &[Memory]) -> Vec<Sum> {
    let mut sums: BTreeMap<(&str, String), Sum> = BTreeMap::new();
    for memory in memories {
        let place = match &memory.place {
            Place::Task => "task",
            Place::Beside(_) => "beside",
            Place::Here(_) => "here",
        };
        let kind = kind(&memory.name);
        let sum = sums.entry((place, kind.clone()));
        let sum = sum.or_insert(Sum { place, kind, count: 0, bytes: 0, stored_bytes: 0 });
        sum.count += 1;
        sum.bytes = sum.bytes.saturating_add(memory.bytes);
        let stored = memory.extents().iter().map(|extent| extent.bytes).sum();
        sum.stored_bytes = sum.stored_bytes.saturating_add(stored);
    }
    sums.into_values().collect()
}

/// What memory is for: the part of its name that is neither the owner's nor a number.
fn kind(name: &str) -> String {
    let plain = match name.rsplit_once(':') {
        Some((plain, digits)) if digits.len() == DIGITS => plain,
        _ => name,
    };
    let rest =
        plain.trim_start_matches("softgpu").trim_start_matches("stasis").trim_start_matches([':', '-']);
    rest.split(':').next().unwrap_or(rest).to_owned()
}

#[cfg(test)]
mod tests {
    use stasis_criu_foreign::{Client, Extent, Run, VERSION};

    use super::*;

    fn memory(name: &str, bytes: u64, place: Place) -> Memory {
        Memory { name: name.into(), bytes, place }
    }

    #[test]
    fn kinds_are_read_from_names() {
        for (name, expected) in [
            ("softgpu:vram-public:7840:487a77af01165b0b", "vram-public"),
            ("softgpu-doorbells:d100b2d65fe2064f", "doorbells"),
            ("softgpu:file:9b39edb9719f4933", "file"),
            ("stasis-userptr:082ea021f62b2a6c", "userptr"),
            ("softgpu:mmio:0:3878730be8f3be72", "mmio"),
            ("a name", "a name"),
        ] {
            assert_eq!(kind(name), expected);
        }
    }

    #[test]
    fn devices_are_told_by_clients_and_sums() {
        let here = Place::Here(vec![Extent { offset: 0, at: 0, bytes: 4096 }]);
        let beside = Place::Beside(vec![Extent { offset: 4096, at: 4096, bytes: 4096 }]);
        let memories = vec![
            memory("softgpu:vram:7840:487a77af01165b0b", 8192, Place::Task),
            memory("softgpu:vram:7840:587a77af01165b0b", 4096, Place::Task),
            memory("softgpu:vram:7840:687a77af01165b0b", 16384, here),
            memory("softgpu:gtt:7840:787a77af01165b0b", 8192, beside),
        ];
        let run = Run { socket: "s".into(), directory: "/d/machine".into(), devices: "gfx1100".into() };
        let clients = vec![Client { pid: 7, state: "device-7.state".into(), queues: 2, waves: 1, waits: 0 }];
        let sums = sums(&memories);
        let description =
            Description { version: VERSION, run, processes: vec![7, 8], clients, memories, programs: None };
        let devices = Devices { description, state_bytes: vec![99], sums };
        let mut text = String::new();
        devices.describe(&mut text);
        assert_eq!(
            text,
            "  processes 7, 8\n\
             Devices of `stasis run`: gfx1100, files of the machine in /d/machine\n  \
             process 7: 2 queues, 1 wave in the middle of kernels, 0 waits for events, a state of 99 bytes\n  \
             memory in CRIU's images: 2 with 12288 bytes\n    \
             2 vram: 12288 bytes\n  \
             memory of processes, beside them: 1 with 8192 bytes\n    \
             1 gtt: 8192 bytes, 4096 of them stored\n  \
             memory of no process, beside them: 1 with 16384 bytes\n    \
             1 vram: 16384 bytes, 4096 of them stored\n"
        );
        let json = serde_json::to_value(&devices).unwrap();
        assert_eq!(
            (&json["clients"][0]["queues"], &json["sums"][0]["stored_bytes"]),
            (&2.into(), &4096.into())
        );
    }
}
