// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles test kernels with the clang that `cargo xtask setup` installs.

use std::process::Command;

const AXPY: &str = r#"
#define GLOBAL __attribute__((address_space(1)))
#define LOCAL __attribute__((address_space(3)))
#define KERNEL API __attribute__((amdgpu_kernel))
API GLOBAL unsigned table[4] = {1, 2, 3, 4};
API GLOBAL unsigned *second = &table[1];
__attribute__((loader_uninitialized)) static LOCAL float shared[256];
KERNEL void axpy(GLOBAL const float *x, GLOBAL float *y, float a, unsigned n) {
    unsigned i = __builtin_amdgcn_workgroup_id_x() * __builtin_amdgcn_workgroup_size_x()
               + __builtin_amdgcn_workitem_id_x();
    if (i < n) y[i] = a * x[i] + y[i] + (float)*second;
}
KERNEL void group(GLOBAL float *y) {
    unsigned i = __builtin_amdgcn_workitem_id_x();
    shared[i] = y[i];
    __builtin_amdgcn_s_barrier();
    y[i] = shared[255 - i];
}
"#;

const OUTSIDE: &str = r"
#define GLOBAL __attribute__((address_space(1)))
extern API GLOBAL unsigned from_outside[4];
API GLOBAL unsigned *pointer = &from_outside[1];
API __attribute__((amdgpu_kernel)) void load(GLOBAL unsigned *out) { *out = *pointer; }
";

const OPENCL: &str = r"
__kernel __attribute__((reqd_work_group_size(16, 4, 1)))
void scale(__global float *values, float by, __local float *scratch) {
    scratch[0] = by;
    values[__builtin_amdgcn_workitem_id_x()] *= scratch[0];
}
";

/// A kernel's source and how to compile it.
pub struct Source {
    text: &'static str,
    cpu: String,
    version: u32,
    flags: Vec<String>,
    api: String,
    beside: Option<&'static str>,
}

impl Source {
    /// Two kernels, a table, and a pointer into it.
    pub fn axpy() -> Self {
        Self {
            text: AXPY,
            cpu: "gfx1100".to_owned(),
            version: 5,
            flags: Vec::new(),
            api: r#"API=__attribute__((visibility("protected")))"#.to_owned(),
            beside: None,
        }
    }

    /// A kernel that needs a symbol of another file.
    pub fn outside() -> Self {
        Self {
            text: OUTSIDE,
            api: r#"API=__attribute__((visibility("default")))"#.to_owned(),
            ..Self::axpy()
        }
    }

    /// A kernel in another language, with a required workgroup and names for its arguments.
    pub fn opencl() -> Self {
        Self { text: OPENCL, ..Self::axpy() }.flag("-xcl").flag("-cl-std=CL2.0").flag("-cl-kernel-arg-info")
    }

    /// Links a second object, with the kernel `load`, to this one.
    pub fn with_another(mut self) -> Self {
        self.beside = Some(OUTSIDE);
        self.flag("-Wl,--unresolved-symbols=ignore-all")
    }

    pub fn cpu(mut self, cpu: &str) -> Self {
        cpu.clone_into(&mut self.cpu);
        self
    }

    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    pub fn define(mut self, definition: &str) -> Self {
        definition.clone_into(&mut self.api);
        self
    }

    /// The bytes of the finished file.
    pub fn compile(&self) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        let (source, object) = (dir.path().join("kernel.c"), dir.path().join("kernel.so"));
        std::fs::write(&source, self.text).unwrap();
        let others: Vec<_> = self
            .beside
            .iter()
            .map(|text| {
                let path = dir.path().join("beside.c");
                std::fs::write(&path, text).unwrap();
                path
            })
            .collect();
        let clang = std::env::var_os("STASIS_CLANG").unwrap_or_else(|| "clang-19".into());
        let output = Command::new(&clang)
            .args(["-target", "amdgcn-amd-amdhsa", "-nogpulib", "-ffreestanding", "-O2", "-w"])
            .arg(format!("-mcpu={}", self.cpu))
            .arg(format!("-mcode-object-version={}", self.version))
            .arg(format!("-D{}", self.api))
            .args(&self.flags)
            .arg("-o")
            .arg(&object)
            .args(std::iter::once(&source).chain(&others))
            .output()
            .unwrap_or_else(|error| panic!("{clang:?}: {error}; run `cargo xtask setup`"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read(object).unwrap()
    }
}
