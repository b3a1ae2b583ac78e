// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that are restored without the contents of their buffers: whatever looks at one finds every byte, and a byte that is not
//! to be had ends the process.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use stasis::checkpoint::{Admission, IMAGE_FILE, Lazy, Mode, RestoreOptions, RestoreReport};
use stasis::image::Image;
use stasis::{Arg, Buffer, Kernel, Runtime, Span};
use stasis_tests::gpu::{Gpu, Numbers, SOON};
use stasis_tests::worker::{Worker, refused, succeeded, wait_until};

const DEADLINE: Duration = Duration::from_secs(60);

fn thaw(runtime: &Runtime, directory: &Path, lazy: Lazy) -> RestoreReport {
    runtime.lock(Mode::Drain, DEADLINE).unwrap();
    runtime.checkpoint(directory).unwrap();
    let admission = Some(Admission { lazy, ..Admission::default() });
    let report = runtime.restore_with(&RestoreOptions { admission, ..RestoreOptions::default() }).unwrap();
    runtime.unlock().unwrap();
    report
}

/// Links in many buffers that name each other, and the same in a model.
struct Web {
    gpu: Gpu,
    chase: Kernel,
    relink: Kernel,
    numbers: Numbers,
    buffers: Vec<Buffer>,
    /// By buffer and place: which link is next, and the word.
    model: Vec<Vec<((usize, usize), u64)>>,
    sum: Buffer,
}

const LINK: u64 = 16;
/// Links stand this far from each other: some in the same piece of a buffer, some not.
const STRIDE: u64 = 300_000;
const PLACES: usize = 12;

impl Web {
    fn new(seed: u64) -> Self {
        let gpu = Gpu::new();
        let (chase, relink, sum) = (gpu.kernel("chase"), gpu.kernel("relink"), gpu.buffer(&[0u64]));
        let mut web =
            Self { chase, relink, numbers: Numbers(seed), buffers: Vec::new(), model: Vec::new(), sum, gpu };
        for _ in 0..10 {
            web.add();
        }
        web
    }

    fn any(&mut self, below: usize) -> usize {
        self.numbers.next().unwrap() as usize % below
    }

    fn any_place(&mut self) -> (usize, usize) {
        (self.any(self.buffers.len()), self.any(PLACES))
    }

    fn address(&self, (buffer, place): (usize, usize)) -> u64 {
        self.buffers[buffer].va() + place as u64 * STRIDE
    }

    fn span(&self, (buffer, place): (usize, usize)) -> Span<'_> {
        self.buffers[buffer].span(place as u64 * STRIDE, LINK)
    }

    fn bytes(&self, place: (usize, usize)) -> Vec<u8> {
        let (next, word) = self.model[place.0][place.1];
        [self.address(next).to_le_bytes(), word.to_le_bytes()].concat()
    }

    /// Adds a buffer whose links name any.
    fn add(&mut self) {
        let pool = if self.any(2) == 0 { self.gpu.agent.vram() } else { self.gpu.runtime.gtt() };
        self.buffers.push(pool.alloc(PLACES as u64 * STRIDE).unwrap());
        self.model.push(vec![((0, 0), 0); PLACES]);
        let buffer = self.buffers.len() - 1;
        for place in 0..PLACES {
            let next = self.any_place();
            self.model[buffer][place] = (next, self.numbers.next().unwrap().into());
            let bytes = self.bytes((buffer, place));
            self.buffers[buffer].write(place as u64 * STRIDE, &bytes).unwrap();
        }
    }

    /// Follows links on the agent and in the model.
    fn check(&mut self, what: &str) {
        let (mut at, steps) = (self.any_place(), self.any(6) + 1);
        let start = at;
        let mut wanted = 0u64;
        for _ in 0..steps {
            let (next, word) = self.model[at.0][at.1];
            wanted = wanted.wrapping_add(word);
            at = next;
        }
        let args = [Arg::Span(self.span(start)), Arg::Buffer(&self.sum), Arg::U32(steps as u32)];
        self.gpu.run(&self.chase, [1, 1, 1], [1, 1, 1], &args);
        let mut found = [0; 8];
        self.sum.read(0, &mut found).unwrap();
        assert_eq!(u64::from_le_bytes(found), wanted, "{what}, {steps} steps from {start:?}");
    }

    /// Changes a link in one of the ways in which links change.
    fn change(&mut self) {
        let (at, next) = (self.any_place(), self.any_place());
        let offset = at.1 as u64 * STRIDE;
        match self.any(5) {
            0 => {
                self.model[at.0][at.1].0 = next;
                let bytes = self.bytes(at);
                self.buffers[at.0].write(offset, &bytes).unwrap();
            }
            1 => {
                self.model[at.0][at.1].0 = next;
                let (bytes, guard) = (self.bytes(at), self.buffers[at.0].host().unwrap());
                // SAFETY: the place is in the buffer, and no agent uses it now.
                #[allow(unsafe_code)]
                unsafe {
                    guard.as_ptr().add(offset as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                }
            }
            2 => {
                let steps = self.any(4) + 1;
                let mut last = at;
                for _ in 1..steps {
                    last = self.model[last.0][last.1].0;
                }
                self.model[last.0][last.1].0 = next;
                let [from, to] = [at, next].map(|place| self.span(place));
                let args = [Arg::Span(from), Arg::Span(to), Arg::U32(steps as u32)];
                self.gpu.run(&self.relink, [1, 1, 1], [1, 1, 1], &args);
            }
            3 if at != next => {
                self.model[next.0][next.1] = self.model[at.0][at.1];
                let [from, to] = [at, next].map(|place| self.span(place));
                self.gpu.runtime.copy(to, from, &[]).unwrap().wait(SOON).unwrap();
            }
            _ => {
                self.model[at.0][at.1].0 = next;
                let pattern = self.bytes(at);
                self.gpu.runtime.fill(self.span(at), &pattern, &[]).unwrap().wait(SOON).unwrap();
            }
        }
    }
}

#[test]
fn kernels_that_follow_pointers_through_any_buffers_find_what_was_saved() {
    let directory = tempfile::tempdir().unwrap();
    for seed in 0..6 {
        let mut web = Web::new(seed);
        for round in 0..3 {
            let lazy = if (seed + round) % 3 == 0 { Lazy::Background } else { Lazy::Asked };
            let report = thaw(&web.gpu.runtime, directory.path(), lazy);
            assert!(report.not_lazy.is_none() && report.lazy_bytes > 0, "{report:?}");
            for step in 0..12 {
                match web.any(4) {
                    0 => web.change(),
                    1 if step % 5 == 0 => web.add(),
                    _ => web.check(&format!("seed {seed}, round {round}, step {step}")),
                }
            }
        }
        // Everything, by the process.
        for (number, buffer) in web.buffers.iter().enumerate() {
            for place in 0..PLACES {
                let mut found = vec![0; LINK as usize];
                buffer.read(place as u64 * STRIDE, &mut found).unwrap();
                assert_eq!(found, web.bytes((number, place)), "seed {seed}, buffer {number}, place {place}");
            }
        }
    }
}

fn restore(worker: &Worker, name: &str, lazy: &str) -> serde_json::Value {
    let directory = worker.path(name);
    succeeded(&worker.stasis(&["restore", "--json", lazy, directory.to_str().unwrap()]))
}

/// Bytes that are still to come.
fn left(worker: &Worker) -> u64 {
    let pid = worker.pid().to_string();
    succeeded(&worker.stasis(&["status", "--json", &pid]))["lazy_bytes"].as_u64().unwrap()
}

#[test]
fn process_that_criu_restored_runs_and_is_checkpointed_again() {
    let mut worker = Worker::start(&["--threads", "2"]);
    for (generation, lazy) in ["--lazy", "--lazy=asked", "--lazy=background"].iter().enumerate() {
        let name = format!("images{generation}");
        worker.freeze(&name);
        let report = restore(&worker, &name, lazy);
        assert!(report["lazy_bytes"].as_u64().unwrap() > 3 << 20, "{report}");
        // What is to come is in files that the process has open.
        fs::remove_dir_all(worker.path(&name)).unwrap();
        worker.wait_rounds(3);
        if *lazy != "--lazy=asked" {
            wait_until("the rest", || left(&worker) == 0);
        }
    }
    worker.freeze("last");
    succeeded(&worker.restore("last"));
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn piece_that_was_altered_ends_the_process_and_leaves_the_checkpoint() {
    // Its orphans are this process's.
    set_child_subreaper(true).unwrap();
    let mut worker = Worker::start(&[]);
    worker.freeze("images");
    let path = worker.path("images").join(IMAGE_FILE);
    let (place, length) = {
        let image = Image::open(&path).unwrap();
        let largest = image.chunks().iter().max_by_key(|chunk| chunk.length).unwrap();
        (largest.file_offset + largest.length / 2, largest.length)
    };
    assert!(length >= 1 << 20, "it is not the ballast, which every round reads");
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, place).unwrap();
    file.write_all_at(&[byte[0] ^ 1], place).unwrap();
    // Before CRIU starts, if all is to be there before the process runs.
    assert!(refused(&worker.restore("images")).contains("the hash of a chunk does not fit its bytes"));
    let directory = worker.path("images");
    // The process may end before the command does, which says so then.
    let _ = worker.stasis(&["restore", "--lazy", directory.to_str().unwrap()]);
    let pid = Pid::from_raw(worker.pid());
    assert_eq!(waitpid(pid, None).unwrap(), WaitStatus::Exited(pid, 74));
    assert!(!worker.log().contains("has changed"), "the wrong byte was seen: {}", worker.log());
    file.write_all_at(&byte, place).unwrap();
    restore(&worker, "images", "--lazy");
    worker.wait_rounds(2);
    worker.finish();
}
