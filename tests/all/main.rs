//! The integration tests, one program: `cargo test --test all engine_echo::`. Tests that need a process of
//! their own (an allocator that counts, descriptors, CPU affinity) are next to this folder.

#[path = "../common/mod.rs"]
mod common;
#[path = "../engine_support/mod.rs"]
mod engine_support;
mod folder_support;
mod ops_support;
mod plain_ops;

mod abi_header;
#[cfg(unix)] // compiles and runs a program of C
mod abi_layout;
#[cfg(unix)] // compiles programs of C
mod abi_readme;
mod convert;
#[cfg(unix)] // the emulated driver is a shared library of Unix
mod cuda;
mod cycles;
mod eagle_support;
mod engine_constrained;
mod engine_decisions;
mod engine_disk;
mod engine_eagle;
mod engine_echo;
mod engine_embed;
mod engine_encoders;
mod engine_everything;
mod engine_faults;
mod engine_gemma4;
mod engine_goldens;
mod engine_hybrids;
mod engine_invariance;
mod engine_latent;
mod engine_memory;
mod engine_mtmd;
mod engine_mutual;
mod engine_pictures;
mod engine_pictures_random;
mod engine_power;
mod engine_pressure;
mod engine_recurrent_drafts;
mod engine_rerankers;
mod engine_scores;
mod engine_speculation;
mod layers;
mod model_adapters;
mod model_bad_dense;
mod model_bad_files;
mod model_damaged;
mod model_drafters;
mod model_eagle;
mod model_echo;
mod model_folders;
mod model_golden;
mod model_hostile;
mod model_hybrids;
mod model_kv;
mod model_latent;
mod model_mamba;
mod model_mtp;
mod model_parity;
mod model_plain;
mod model_quantized;
mod model_rotations;
mod model_shared;
mod model_sources;
mod model_towers;
mod model_types;
mod model_zeros;
mod notices;
mod ops_fused;
mod ops_inputs;
mod ops_invariance;
mod ops_latent;
mod ops_plain;
mod sampler_parity;
mod schedule_simulation;
mod text_chat;
mod text_replies;
mod text_stack;
mod text_tools;
