//! Writes the Rust declarations of mlx-c, with the settings of mlx-sys's own build script.
//!
//! Usage: `mlx-bindings MLX_C_DIR OUT_FILE [CLANG_ARG]...`. Compiling it needs `MLX_SYS_DIR`, the
//! unpacked crate: including its settings (not a copy of them) keeps the two from drifting apart.

use std::{env, error::Error, path::PathBuf};

mod bindgen_config {
    #![allow(dead_code, reason = "the file is mlx-sys's; its build script uses the rest")]
    include!(concat!(env!("MLX_SYS_DIR"), "/src/bindgen_config.rs"));
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let usage = "usage: mlx-bindings MLX_C_DIR OUT_FILE [CLANG_ARG]...";
    let mlx_c_dir = PathBuf::from(args.next().ok_or(usage)?);
    let out_file = PathBuf::from(args.next().ok_or(usage)?);
    let headers = bindgen_config::discover_headers(&mlx_c_dir)?;
    bindgen_config::builder(&mlx_c_dir, &headers)
        .clang_args(args)
        .formatter(bindgen::Formatter::None)
        .generate()?
        .write_to_file(out_file)?;
    Ok(())
}
