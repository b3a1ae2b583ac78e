// SPDX-License-Identifier: MIT OR Apache-2.0
//! A test's own runtime, and short functions to load, fill, run and read.
//!
//! INVARIANT: every process has a `softgpud` of its own, so that no test sees another's memory, queues or failures.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::Duration;

use bytemuck::Pod;
use device_cc::newest;
use stasis::{Agent, Arg, Buffer, Executable, Kernel, Options, Queue, QueueOptions, Runtime, Signal};

mod objects {
    include!(concat!(env!("OUT_DIR"), "/compute.rs"));
    pub(super) fn compute() -> &'static [(&'static str, &'static [u8])] {
        OBJECTS
    }
}
mod faulty {
    include!(concat!(env!("OUT_DIR"), "/faults.rs"));
    pub(super) fn faults() -> &'static [(&'static str, &'static [u8])] {
        OBJECTS
    }
}

/// First another chip; the chip that fits is in another slot, with another serial number and render node and more
/// memory.
pub const OTHER_ORDER: &str = r#"
[[gpu]]
chip = "gfx1201"

[[gpu]]
chip = "gfx1100"
pci = "0000:c3:00.0"
unique_id = "0xfeedfacecafebeef"
render_minor = 140
vram_bytes = "32GiB"
"#;

/// TIMEOUT: how long anything that is to happen may take on a busy machine.
pub const SOON: Option<Duration> = Some(Duration::from_secs(60));

/// Whether the suite is run over the kernel's driver (`STASIS_DEVICE=kfd`).
#[must_use]
pub fn is_kernel_driver() -> bool {
    std::env::var("STASIS_DEVICE").is_ok_and(|device| device == "kfd")
}

/// Whether a test that needs the software device must be skipped; prints the reason.
#[must_use]
pub fn skip_on_kernel_driver(reason: &str) -> bool {
    if is_kernel_driver() {
        println!("ignored: {reason}");
    }
    is_kernel_driver()
}

/// Gives this process a software device of its own. Called before the runtime opens.
pub fn isolate() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let instance = format!("tests-{}", std::process::id());
        // SAFETY: the variable is set once, before this process opens a runtime; until then only std reads the
        // environment in this process, and std has a lock for that.
        #[allow(unsafe_code)]
        unsafe {
            std::env::set_var("STASIS_SOFTGPU_INSTANCE", instance);
        }
    });
}

/// Sets the kernel whose driver the software device imitates, in this process and those that it starts, and gives it a device
/// of its own: one that others have started imitates what they chose. Called before the first device starts.
pub fn imitate(kernel: &str) {
    isolate();
    // SAFETY: as in `isolate`.
    #[allow(unsafe_code)]
    unsafe {
        std::env::set_var("SOFTGPU_KERNEL", kernel);
    }
}

/// Has the software device tell what its GPUs have written. As for [`imitate`].
pub fn told_of_writes() {
    isolate();
    // SAFETY: as in `isolate`.
    #[allow(unsafe_code)]
    unsafe {
        std::env::set_var("SOFTGPU_WRITES", "on");
    }
}

/// Has the software device imitate a kernel that restores queues of every chip. None that is released does so for
/// gfx11, so a test that preempts a gfx1100 needs this; the suite's default is a released kernel.
pub fn on_a_future_kernel() {
    imitate("fixed");
}

/// The runtime on the device the suite is run over: one software gfx1100, or what the kernel's driver has.
///
/// # Panics
/// When it does not open.
#[must_use]
pub fn open() -> Runtime {
    if is_kernel_driver() { open_on("kfd", None) } else { open_on("soft:gfx1100", None) }
}

/// A topology file with this text, for `soft:PATH`, in a directory of its own.
///
/// # Panics
/// When it cannot be written.
#[must_use]
pub fn machine_file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("machine.toml");
    std::fs::write(&path, text).expect("a topology file");
    (directory, path)
}

/// The runtime on this device with these agents.
///
/// # Panics
/// When it does not open.
#[must_use]
pub fn open_on(device: &str, agents: Option<&str>) -> Runtime {
    isolate();
    let device = Some(device.parse().expect("a device specification"));
    Runtime::open(Options { device, agents: agents.map(str::to_owned) }).expect("a runtime")
}

/// The code object of `tests/kernels/compute.c` for a target.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn compute_object(target: &str) -> &'static [u8] {
    find(objects::compute(), target)
}

/// The code object of `tests/kernels/faults.c` for a target.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn faults_object(target: &str) -> &'static [u8] {
    find(faulty::faults(), target)
}

fn find(objects: &[(&str, &'static [u8])], target: &str) -> &'static [u8] {
    let found = objects.iter().find(|(name, _)| *name == target);
    found.unwrap_or_else(|| panic!("the tests' kernels are not compiled for {target}")).1
}

/// Compiles a file of `tests/kernels` with the device compiler and these flags.
///
/// # Panics
/// When the compiler fails.
#[must_use]
pub fn compile(source: &str, target: &str, flags: &[&str]) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let object = directory.path().join("object");
    let output = Command::new(device_cc::clang())
        .args([
            "--target=amdgcn-amd-amdhsa",
            "-O2",
            "-ffreestanding",
            "-nogpulib",
            &format!("-mcpu={target}"),
        ])
        .args(flags)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").join(source))
        .arg("-o")
        .arg(&object)
        .output()
        .expect("the device compiler: run `cargo xtask setup`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(object).expect("what the compiler wrote")
}

/// A runtime's first agent with a queue.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// The process's runtime.
    pub runtime: Runtime,
    /// The agent.
    pub agent: Agent,
    /// A queue with the default options.
    pub queue: Queue,
    /// Where [`Gpu::kernel`] finds kernels.
    pub objects: Objects,
}

/// Code objects of the tests' kernels.
#[derive(Clone, Debug)]
pub struct Objects {
    compute: Cow<'static, [u8]>,
    faults: Cow<'static, [u8]>,
}

impl Gpu {
    /// The first agent of [`open`].
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn new() -> Self {
        Self::on(&open(), 0)
    }

    /// An agent of a runtime.
    ///
    /// # Panics
    /// When there is no such agent or no queue to be had.
    #[must_use]
    pub fn on(runtime: &Runtime, index: usize) -> Self {
        let agent = runtime.agent(index).expect("an agent");
        let queue = Queue::create(&agent, QueueOptions::default()).expect("a queue");
        let objects = Objects {
            compute: compute_object(agent.name()).into(),
            faults: faults_object(agent.name()).into(),
        };
        Self { runtime: runtime.clone(), agent, queue, objects }
    }

    /// The first agent of [`open`], with the tests' kernels by the newest compiler.
    ///
    /// # Panics
    /// When it does not come up, or the compiler is not there or fails.
    #[must_use]
    pub fn with_the_newest_compiler() -> Self {
        let place = tempfile::tempdir().expect("a temporary directory");
        let compiled = |source: &str| {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").join(source);
            let flags = ["-std=c17", "-O3", "-mcode-object-version=5"];
            let object = newest::compile(&[source], &flags, 32, place.path());
            object.unwrap_or_else(|why| panic!("{why}")).file.into()
        };
        Self {
            objects: Objects { compute: compiled("compute.c"), faults: compiled("faults.c") },
            ..Self::new()
        }
    }

    /// The code object of `tests/kernels/compute.c`.
    #[must_use]
    pub fn compute_object(&self) -> &[u8] {
        &self.objects.compute
    }

    /// A kernel of `compute.c` or else of `faults.c`.
    ///
    /// # Panics
    /// When there is none of this name.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Kernel {
        let compute = self.load(&self.objects.compute);
        compute
            .kernel(name)
            .unwrap_or_else(|_| self.load(&self.objects.faults).kernel(name).expect("a kernel of the tests"))
    }

    /// Loads a code object.
    ///
    /// # Panics
    /// When it is refused.
    #[must_use]
    pub fn load(&self, object: &[u8]) -> Executable {
        Executable::load(&self.agent, object).expect("a code object that loads")
    }

    /// A buffer in the agent's memory with these values.
    ///
    /// # Panics
    /// When there is no memory.
    #[must_use]
    pub fn buffer<T: Pod>(&self, values: &[T]) -> Buffer {
        let buffer = self.agent.vram().alloc(size_of_val(values) as u64).expect("memory");
        buffer.upload(0, bytemuck::cast_slice(values)).expect("an upload");
        buffer
    }

    /// Runs a kernel and waits for it.
    ///
    /// # Panics
    /// When it is refused or fails.
    pub fn run(&self, kernel: &Kernel, grid: [u32; 3], block: [u16; 3], args: &[Arg<'_>]) {
        let done = Signal::new(&self.runtime, 1).expect("a signal");
        let dispatch = self.queue.dispatch(kernel).grid(grid).block(block).args(args).completion(&done);
        dispatch.submit().expect("a dispatch that is taken");
        done.wait_done(SOON).expect("a dispatch that completes");
    }
}

/// A kernel on the device that runs until it is told to end.
#[derive(Debug)]
pub struct Spinning {
    /// Errors name the kernel as long as it is loaded.
    _kernel: Kernel,
    flag: Buffer,
    /// 1 until the kernel has ended, then 0.
    pub done: Signal,
}

impl Spinning {
    /// Starts one on `gpu`'s queue.
    ///
    /// # Panics
    /// When it is refused.
    #[must_use]
    pub fn start(gpu: &Gpu) -> Self {
        let flag = gpu.runtime.gtt().alloc(4).expect("memory");
        flag.write(0, &[0; 4]).expect("a flag");
        let done = Signal::new(&gpu.runtime, 1).expect("a signal");
        let (kernel, args) = (gpu.kernel("spin"), [Arg::Buffer(&flag)]);
        let dispatch = gpu.queue.dispatch(&kernel).grid([1, 1, 1]).args(&args).completion(&done);
        dispatch.submit().expect("a dispatch");
        Self { _kernel: kernel, flag, done }
    }

    /// Tells it to end.
    ///
    /// # Panics
    /// When the flag cannot be written.
    pub fn end(&self) {
        self.flag.write(0, &[1; 4]).expect("a flag");
    }
}

impl Default for Gpu {
    fn default() -> Self {
        Self::new()
    }
}

/// What is in a buffer.
///
/// # Panics
/// When it cannot be read.
#[must_use]
pub fn values<T: Pod>(buffer: &Buffer) -> Vec<T> {
    // CAST: u64 and usize are the same here.
    let mut bytes = vec![0; buffer.len() as usize];
    buffer.download(0, &mut bytes).expect("a download");
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Pseudo-random numbers, the same ones in every run.
#[derive(Clone, Copy, Debug)]
pub struct Numbers(pub u64);

impl Iterator for Numbers {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // CAST: the high half of 64 bits.
        Some((self.0 >> 32) as u32)
    }
}

/// `n` floats between -1 and 1.
#[must_use]
pub fn floats(seed: u64, n: usize) -> Vec<f32> {
    Numbers(seed).take(n).map(|number| (number >> 8) as f32 / 8_388_608.0 - 1.0).collect()
}
