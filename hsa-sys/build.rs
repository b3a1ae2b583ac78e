// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generates the vendor's types from the headers of the system; nothing of them is kept in the repository.
//!
//! The headers are those of `STASIS_HSA_INCLUDE` (the directory above `hsa/`), of `/usr/include` or of
//! `/opt/rocm/include`. libclang is the one of `LIBCLANG_PATH`, else that of clang 19.

use std::path::Path;
use std::path::PathBuf;
use std::process::ExitCode;

const HEADERS: [&str; 5] =
    ["hsa.h", "hsa_ext_amd.h", "amd_hsa_queue.h", "amd_hsa_signal.h", "amd_hsa_kernel_code.h"];
const DEBIAN_LIBCLANG: &str = "/usr/lib/llvm-19/lib";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    for variable in ["STASIS_HSA_INCLUDE", "LIBCLANG_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    match generate() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("cargo::error=hsa-sys: {why}");
            ExitCode::FAILURE
        }
    }
}

fn generate() -> Result<(), String> {
    let include = include_directory()?;
    if std::env::var_os("LIBCLANG_PATH").is_none() {
        if !Path::new(DEBIAN_LIBCLANG).join("libclang.so").exists() {
            return Err(format!(
                "no libclang in {DEBIAN_LIBCLANG}: install package libclang-19-dev (`cargo xtask setup`) \
                 or set LIBCLANG_PATH"
            ));
        }
        // SAFETY: a build script has no other thread at this point.
        unsafe { std::env::set_var("LIBCLANG_PATH", DEBIAN_LIBCLANG) };
    }
    let text: String = HEADERS.iter().map(|header| format!("#include <hsa/{header}>\n")).collect();
    for header in HEADERS {
        println!("cargo::rerun-if-changed={}", include.join("hsa").join(header).display());
    }
    let bindings = bindgen::Builder::default()
        .header_contents("stasis_hsa.h", &text)
        .clang_arg(format!("-I{}", include.display()))
        .allowlist_item("(amd|hsa|AMD|HSA|_amd).*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .generate_comments(false)
        .derive_default(true)
        .generate()
        .map_err(|error| format!("the HSA headers in {} are unusable: {error}", include.display()))?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo set no OUT_DIR")?).join("hsa.rs");
    bindings.write_to_file(&out).map_err(|error| format!("could not write {}: {error}", out.display()))
}

fn include_directory() -> Result<PathBuf, String> {
    let chosen = std::env::var_os("STASIS_HSA_INCLUDE").map(PathBuf::from);
    let candidates = match chosen {
        Some(path) => vec![path],
        None => ["/usr/include", "/opt/rocm/include"].map(PathBuf::from).to_vec(),
    };
    candidates.iter().find(|path| path.join("hsa/hsa.h").is_file()).cloned().ok_or_else(|| {
        format!(
            "no hsa/hsa.h in {candidates:?}: install package libhsa-runtime-dev (`cargo xtask setup`) or set \
             STASIS_HSA_INCLUDE"
        )
    })
}
