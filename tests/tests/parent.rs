// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checkpoints upon an earlier one: what did not change is not written again, and nothing depends on the earlier one's directory.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stasis::checkpoint::{CheckpointError, CheckpointOptions, IMAGE_FILE, Mode, RestoreOptions};
use stasis::image::{Image, ImageError};
use stasis::{Arg, Runtime};
use stasis_tests::criu;
use stasis_tests::gpu::{Gpu, Numbers, values};
use stasis_tests::worker::{Worker, refused, stasis, succeeded};

const SOON: Duration = Duration::from_secs(60);

fn number(outcome: &serde_json::Value, name: &str) -> u64 {
    outcome[name].as_u64().unwrap_or_else(|| panic!("no {name} in {outcome}"))
}

fn image(directory: &Path) -> Image {
    Image::open(&directory.join(IMAGE_FILE)).unwrap()
}

/// The files of earlier images beside that of a directory.
fn earlier(directory: &Path) -> Vec<PathBuf> {
    image(directory).earlier().iter().map(|earlier| directory.join(&earlier.name)).collect()
}

fn inspect(directory: &Path) -> serde_json::Value {
    succeeded(&stasis(&["inspect", "--json", "--verify", directory.to_str().unwrap()], &criu()))
}

/// Frozen, and frozen upon that when it has gone on; the first one is gone.
fn frozen_twice(worker: &mut Worker) -> serde_json::Value {
    worker.freeze("first");
    succeeded(&worker.restore("first"));
    worker.wait_rounds(2);
    let first = worker.path("first");
    let outcome = succeeded(&worker.checkpoint("second", &["--parent", first.to_str().unwrap()]));
    worker.bury();
    fs::remove_dir_all(first).unwrap();
    outcome
}

#[test]
fn generations_upon_each_other_have_every_byte_when_their_parents_are_gone() {
    let mut worker = Worker::start(&[]);
    let outcome = frozen_twice(&mut worker);
    assert!(number(&outcome, "unchanged_bytes") > 0, "{outcome}");
    let mut last = "second".to_owned();
    for generation in 0..4 {
        let (path, next) = (worker.path(&last), format!("generation-{generation}"));
        let inspected = inspect(&path);
        let of_image = &inspected["images"][0];
        let used: u64 =
            of_image["earlier"].as_array().unwrap().iter().map(|file| number(file, "used_bytes")).sum();
        assert!(used > 0 && used < number(of_image, "stored_bytes"), "{inspected}");
        succeeded(&worker.restore(&last));
        worker.wait_rounds(2);
        let outcome = succeeded(&worker.checkpoint(&next, &["--parent", path.to_str().unwrap()]));
        worker.bury();
        assert!(number(&outcome, "unchanged_bytes") > number(&outcome, "stored_bytes"), "{outcome}");
        fs::remove_dir_all(path).unwrap();
        last = next;
    }
    succeeded(&worker.restore(&last));
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn file_of_a_parent_that_is_missing_or_altered_is_refused_by_name() {
    let mut worker = Worker::start(&[]);
    frozen_twice(&mut worker);
    let [file] = &earlier(&worker.path("second"))[..] else { panic!("one file is expected") };
    let bytes = fs::read(file).unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    let refused_by_name = |more: &[&str]| {
        let second = worker.path("second");
        let arguments = [&["restore", "--json"], more, &[second.to_str().unwrap()]].concat();
        let error = refused(&worker.stasis(&arguments));
        assert!(error.contains(name), "{error}");
        assert!(!worker.is_alive());
    };
    fs::remove_file(file).unwrap();
    refused_by_name(&[]);
    refused_by_name(&["--no-verify"]);
    fs::write(file, &bytes).unwrap();
    let used =
        image(&worker.path("second")).chunks().iter().find(|chunk| chunk.file == 1).unwrap().file_offset;
    for place in [0, 100, usize::try_from(used).unwrap()] {
        let mut bytes = bytes.clone();
        bytes[place] ^= 1;
        fs::write(file, bytes).unwrap();
        refused_by_name(&[]);
    }
    fs::write(file, &bytes[..bytes.len() - 1]).unwrap();
    refused_by_name(&[]);
    fs::write(file, &bytes).unwrap();
    succeeded(&worker.restore("second"));
    worker.wait_rounds(2);
    worker.finish();
}

#[test]
fn parents_that_cannot_be_used_cost_nothing() {
    let mut worker = Worker::start(&[]);
    succeeded(&worker.checkpoint("good", &["--leave-running"]));
    succeeded(&worker.checkpoint("contained", &["--leave-running", "--self-contained"]));
    fs::create_dir(worker.path("empty")).unwrap();
    let elsewhere = tempfile::tempdir_in("/dev/shm").unwrap();
    let good = worker.path("good");
    for (parent, reason) in [
        (worker.path("missing"), "Cannot find the parent"),
        (worker.path("empty"), "empty"),
        (worker.path("contained"), "has no image"),
    ] {
        let error = refused(&worker.checkpoint("images", &["--parent", parent.to_str().unwrap()]));
        assert!(error.contains(reason), "{error}");
        assert!(!worker.path("images").exists());
    }
    let there = elsewhere.path().join("images");
    let (pid, there, from) = (worker.pid().to_string(), there.to_str().unwrap(), good.to_str().unwrap());
    let error = refused(&worker.stasis(&["checkpoint", &pid, there, "--parent", from]));
    assert!(error.contains("different file systems"), "{error}");
    assert!(!Path::new(there).exists());
    let error = refused(&worker.checkpoint("images", &["--parent", from, "--self-contained"]));
    assert!(error.contains("--self-contained"), "{error}");
    // One that is damaged is found to be before anything is written upon it.
    let image = good.join(IMAGE_FILE);
    let mut bytes = fs::read(&image).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&image, bytes).unwrap();
    let error = refused(&worker.checkpoint("images", &["--parent", from]));
    assert!(error.contains(image.to_str().unwrap()) && error.contains("metadata"), "{error}");
    worker.wait_rounds(2);
    worker.freeze("images");
    succeeded(&worker.restore("images"));
    worker.finish();
}

#[test]
fn squashed_checkpoint_is_whole_and_restored() {
    let mut worker = Worker::start(&["--threads", "2"]);
    frozen_twice(&mut worker);
    let (second, whole) = (worker.path("second"), worker.path("whole"));
    let squash = ["squash", "--json", second.to_str().unwrap(), whole.to_str().unwrap()];
    let squashed = succeeded(&worker.stasis(&squash));
    assert_eq!((number(&squashed, "images"), number(&squashed, "earlier_files")), (1, 1));
    let error = refused(&worker.stasis(&squash));
    assert!(error.contains("not empty"), "{error}");
    // What is damaged is not made whole, and leaves nothing.
    let file = &earlier(&second)[0];
    let used = image(&second).chunks().iter().find(|chunk| chunk.file == 1).unwrap().file_offset;
    let mut bytes = fs::read(file).unwrap();
    bytes[usize::try_from(used).unwrap()] ^= 1;
    fs::write(file, bytes).unwrap();
    let damaged = worker.path("damaged");
    let error = refused(&worker.stasis(&["squash", second.to_str().unwrap(), damaged.to_str().unwrap()]));
    assert!(error.contains(file.to_str().unwrap()) && !damaged.exists(), "{error}");
    fs::remove_dir_all(second).unwrap();
    let inspected = inspect(&whole);
    assert!(inspected["images"][0].get("earlier").is_none(), "{inspected}");
    succeeded(&worker.restore("whole"));
    worker.wait_rounds(2);
    worker.finish();
}

fn freeze(runtime: &Runtime, directory: &Path, parent: Option<&Path>) -> Result<u64, CheckpointError> {
    let options = CheckpointOptions { parent: parent.map(Path::to_owned), ..CheckpointOptions::default() };
    runtime.lock(Mode::Drain, SOON)?;
    let report = runtime.checkpoint_with(directory, &options);
    if report.is_err() {
        runtime.unlock()?;
    }
    Ok(report?.unchanged_bytes)
}

fn thaw(runtime: &Runtime, directory: Option<PathBuf>) {
    runtime.restore_with(&RestoreOptions { directory, ..RestoreOptions::default() }).unwrap();
    runtime.unlock().unwrap();
}

#[test]
fn process_that_goes_on_has_its_bytes_whatever_became_of_both_directories() {
    let gpu = Gpu::new();
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| {
        let path = place.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let numbers: Vec<u32> = Numbers(1).take(5 << 20).collect();
    let (kept, counter) = (gpu.buffer(&numbers), gpu.buffer(&[0u32]));
    let kernel = gpu.kernel("increment");
    let mut parent = at("0");
    assert_eq!(freeze(&gpu.runtime, &parent, None).unwrap(), 0);
    thaw(&gpu.runtime, None);
    for generation in 1..=5 {
        gpu.run(&kernel, [10, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
        let next = at(&generation.to_string());
        let unchanged = freeze(&gpu.runtime, &next, Some(&parent)).unwrap();
        assert!(unchanged >= 20 << 20, "{unchanged}");
        fs::remove_dir_all(&parent).unwrap();
        parent = next;
        // From where it was, from where it was moved, or from the keepers.
        match generation % 3 {
            0 => thaw(&gpu.runtime, None),
            1 => {
                let moved = place.path().join(format!("moved-{generation}"));
                fs::rename(&parent, &moved).unwrap();
                thaw(&gpu.runtime, Some(moved.clone()));
                parent = moved;
            }
            _ => {
                fs::remove_dir_all(&parent).unwrap();
                thaw(&gpu.runtime, None);
                fs::create_dir(&parent).unwrap();
                assert_eq!(freeze(&gpu.runtime, &parent, None).unwrap(), 0);
                thaw(&gpu.runtime, None);
            }
        }
        assert!(values::<u32>(&kept) == numbers);
        assert_eq!(values::<u32>(&counter), [10 * generation]);
    }
    // Into the parent's own directory, again and again.
    for _ in 0..3 {
        assert!(freeze(&gpu.runtime, &parent, Some(&parent)).unwrap() >= 20 << 20);
        thaw(&gpu.runtime, None);
        assert!(values::<u32>(&kept) == numbers);
    }
    // What cannot be used is said, and the process goes on.
    let error = freeze(&gpu.runtime, &at("last"), Some(Path::new("/nowhere"))).unwrap_err();
    assert!(matches!(error, CheckpointError::Image(ImageError::Io { .. })), "{error}");
    gpu.run(&kernel, [10, 1, 1], [1, 1, 1], &[Arg::Buffer(&counter)]);
    assert_eq!(values::<u32>(&counter), [60]);
}
