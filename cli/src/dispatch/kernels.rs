// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernels of a code object with their arguments: what somebody who has only the file must know to launch one.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use stasis::code_object::{Argument, CodeObject, Kernel, ValueKind};

use super::code::Chosen;

/// A file's kernels.
#[derive(Debug, Serialize)]
pub struct Kernels {
    file: String,
    target: String,
    /// Where the file is an offload bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    bundle: Option<Chosen>,
    kernels: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    argument_bytes: u32,
    argument_align: u32,
    /// LDS that is compiled in.
    group_segment_bytes: u32,
    /// Scratch of a work-item.
    private_segment_bytes: u32,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    uses_dynamic_stack: bool,
    lanes: u32,
    vgprs: u32,
    sgprs: u32,
    max_workgroup: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    required_workgroup: Option<[u32; 3]>,
    arguments: Vec<ArgumentRow>,
}

#[derive(Debug, Serialize)]
struct ArgumentRow {
    /// Which `--arg` it is; none for what the runtime fills in.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    address_space: Option<String>,
    offset: u32,
    bytes: u32,
}

impl Kernels {
    /// All kernels of a file, or one of them.
    pub fn new(file: &Path, object: &CodeObject, only: Option<&Kernel>, bundle: Option<Chosen>) -> Self {
        let kernels = match only {
            Some(kernel) => std::slice::from_ref(kernel),
            None => object.kernels(),
        };
        Self {
            file: file.display().to_string(),
            target: object.isa().to_string(),
            bundle,
            kernels: kernels.iter().map(row).collect(),
        }
    }
}

fn row(kernel: &Kernel) -> Row {
    let metadata = &kernel.metadata;
    let mut given = 0;
    let mut argument = |argument: &Argument| {
        let index = (!matches!(argument.kind, ValueKind::Hidden(_))).then_some(given);
        given += usize::from(index.is_some());
        ArgumentRow {
            index,
            name: argument.name.clone(),
            kind: argument.kind.name().to_owned(),
            address_space: argument.address_space.clone(),
            offset: argument.offset,
            bytes: argument.bytes,
        }
    };
    Row {
        name: kernel.name.clone(),
        argument_bytes: metadata.kernarg_bytes,
        argument_align: metadata.kernarg_align,
        group_segment_bytes: metadata.group_bytes,
        private_segment_bytes: metadata.private_bytes,
        uses_dynamic_stack: metadata.uses_dynamic_stack,
        lanes: metadata.wavefront_size,
        vgprs: metadata.vgprs,
        sgprs: metadata.sgprs,
        max_workgroup: metadata.max_flat_workgroup_size,
        required_workgroup: metadata.required_workgroup,
        arguments: metadata.arguments.iter().map(&mut argument).collect(),
    }
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.kernels.len();
        writeln!(
            f,
            "{}: {count} kernel{} for {}",
            self.file,
            if count == 1 { "" } else { "s" },
            self.target
        )?;
        if let Some(Chosen { entry, entries }) = &self.bundle {
            writeln!(f, "of entry {entry} of a bundle of {}: {}", entries.len(), entries.join(", "))?;
        }
        self.kernels.iter().try_for_each(|kernel| write!(f, "{kernel}"))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workgroup = match self.required_workgroup {
            Some([x, y, z]) => format!("workgroups of {x},{y},{z} only"),
            None => format!("workgroups of at most {}", self.max_workgroup),
        };
        let stack = if self.uses_dynamic_stack { " or more" } else { "" };
        writeln!(
            f,
            "{}: {workgroup}, waves of {}, {} B of LDS, {} B{stack} of scratch a work-item, {} VGPRs, {} B of arguments",
            self.name,
            self.lanes,
            self.group_segment_bytes,
            self.private_segment_bytes,
            self.vgprs,
            self.argument_bytes
        )?;
        for argument in &self.arguments {
            let index = argument.index.map(|index| format!("--arg {index}")).unwrap_or_default();
            let words = [Some(&argument.kind), argument.address_space.as_ref(), argument.name.as_ref()];
            let words: Vec<&str> = words.into_iter().flatten().map(String::as_str).collect();
            let (offset, bytes) = (argument.offset, argument.bytes);
            writeln!(f, "  {index:8} {offset:4} +{bytes:<4} {}", words.join(" "))?;
        }
        Ok(())
    }
}
