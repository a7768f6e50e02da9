//! What pictures take, by an allocator that counts: decoding and resizing stay below what they say, a tower below its
//! workspace, and an engine below its plan and what its requests count. One test: it counts the whole process.

mod common;
mod counting;
mod engine_support;

use bn_engine::engine::Engine;
use bn_engine::engine::api::*;
use bn_engine::kernels::Pool;
use bn_engine::model::{HfFolder, Source, load_tower};
use bn_engine::ops::CpuOps;
use bn_engine::picture::{Family, Filter, Limits, Pixels, Processor, decode, memory};
use counting::{LIVE, PEAK};
use engine_support::*;
use std::sync::atomic::Ordering::SeqCst;

const LIMITS: Limits = Limits { bytes: 64 << 20, side: 1 << 14, pixels: 1 << 25 };

/// The most bytes that `work` holds at once.
fn peak<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = LIVE.load(SeqCst);
    PEAK.store(before, SeqCst);
    let made = work();
    ((PEAK.load(SeqCst) - before) as u64, made)
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// A JPEG's bytes with another size in its frame: the decoder takes memory for it before it misses the rest.
fn enlarged(mut jpeg: Vec<u8>, width: u16, height: u16) -> Vec<u8> {
    let frame = |pair: &[u8]| matches!(pair, [0xff, 0xc0..=0xc2]);
    let at = jpeg.windows(2).position(frame).expect("a frame");
    jpeg[at + 5..at + 7].copy_from_slice(&height.to_be_bytes());
    jpeg[at + 7..at + 9].copy_from_slice(&width.to_be_bytes());
    jpeg
}

/// Large pictures of each format: their names and bytes.
fn files() -> Vec<(&'static str, Vec<u8>)> {
    let golden = |name: &str| std::fs::read(common::root().join("tests/golden/pictures/files").join(name));
    let (width, height) = (1500, 1100);
    let rgba = noise(width * height * 4);
    let png = |kind| {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width as u32, height as u32);
        encoder.set_color(kind);
        let data = &rgba[..width * height * kind.samples()];
        encoder.write_header().unwrap().write_image_data(data).unwrap();
        file
    };
    let webp = |alpha: bool| {
        let mut file = Vec::new();
        let (kind, channels) = match alpha {
            true => (image_webp::ColorType::Rgba8, 4),
            false => (image_webp::ColorType::Rgb8, 3),
        };
        let data = &rgba[..width * height * channels];
        image_webp::WebPEncoder::new(&mut file).encode(data, width as u32, height as u32, kind).unwrap();
        file
    };
    let mut gif = Vec::new();
    {
        let palette = noise(768);
        let mut encoder = gif::Encoder::new(&mut gif, width as u16, height as u16, &palette).unwrap();
        let frame =
            gif::Frame::from_indexed_pixels(width as u16, height as u16, &rgba[..width * height], None);
        encoder.write_frame(&frame).unwrap();
    }
    let jpeg = |name| enlarged(golden(name).unwrap(), 1500, 1100);
    vec![
        ("grey.png", png(png::ColorType::Grayscale)),
        ("rgb.png", png(png::ColorType::Rgb)),
        ("rgba.png", png(png::ColorType::Rgba)),
        ("rgb.webp", webp(false)),
        ("rgba.webp", webp(true)),
        ("plain.gif", gif),
        ("rgb.jpg", jpeg("rgb.jpg")),
        ("progressive.jpg", jpeg("progressive.jpg")),
        ("exif-6.jpg", jpeg("exif-6.jpg")),
    ]
}

fn decoding_takes_what_it_says(files: &[(&'static str, Vec<u8>)]) {
    for (name, file) in files {
        let bound = memory(file, &LIMITS).unwrap();
        let (most, made) = peak(|| decode(file, &LIMITS));
        println!("{name}: {most} of {bound} bytes, {:?}", made.map(|pixels| pixels.rgb.len()).is_ok());
        assert!(most <= bound, "{name}: decoding took {most} bytes of {bound}");
    }
}

fn resizing_takes_what_its_plan_says() {
    let of = |family, filter| Processor {
        family,
        patch: 16,
        merge: 2,
        filter,
        rescale: 1.0 / 255.0,
        normalize: None,
    };
    let families = [
        Family::Qwen { min_pixels: 1 << 16, max_pixels: 1 << 20, frames: 2 },
        Family::Gemma3 { width: 896, height: 896 },
        Family::Idefics3 { longest: 2048, tile: 512, split: true },
        Family::Pixtral { width: 1024, height: 1024 },
    ];
    for family in families {
        for filter in [Filter::Bilinear, Filter::Lanczos] {
            for (width, height) in [(40, 30), (3000, 40), (64, 2500), (1400, 1300)] {
                let processor = of(family, filter);
                let plan = processor.plan(width, height).unwrap();
                let patches = (plan.patches() * processor.patch_len() * 4) as u64;
                let bound = plan.memory(filter);
                let (most, _) = peak(|| {
                    let pixels = Pixels::new(width, height, vec![7; (width * height * 3) as usize]).unwrap();
                    let mut out = Vec::new();
                    processor.prepare(&pixels, &plan, &mut out).unwrap();
                });
                let what = format!("{family:?} by {filter:?} of {width}x{height}");
                assert!(most <= bound + patches + 4096, "{what}: {most} of {bound} bytes and {patches}");
                assert!(2 * most >= bound, "{what}: {most} bytes where {bound} are said");
            }
        }
    }
}

fn towers_stay_within_their_workspace() {
    for name in ["qwen35", "qwen35-wide-q8_0.gguf", "gemma3", "gemma4", "lfm2vl", "mistral3", "smolvlm"] {
        let path = common::root().join("tests/golden/towers").join(name).to_string_lossy().into_owned();
        let pool = Pool::new(2).unwrap();
        let tower =
            load_tower(&Source::File(path), 0, &pool, &|_, _| (), &mut |_, _| false).unwrap().unwrap();
        let ops = CpuOps::new(pool);
        for side in [40, 400] {
            let plan = tower.processor().plan(side, side).unwrap();
            let count = plan.patches();
            // Files of tiny towers have the sizes of real ones where the format has no key.
            if count > 1024 {
                continue;
            }
            let patches = vec![0.25; count * tower.patch_len()];
            let vectors = (plan.vectors() * tower.width() * 4) as u64;
            let run = || {
                let mut out = Vec::new();
                tower.forward(&ops, &[(&patches, &plan.grids)], &mut || false, &mut out).map(|()| out)
            };
            let (most, made) = peak(run);
            if let Err(error) = made {
                assert!(name == "gemma4" && error.message.contains("positions"), "{name}: {error}");
                continue;
            }
            let bound = tower.workspace_bytes(&ops, count) as u64 + vectors;
            println!("{name}: {most} of {bound} bytes for {count} patches");
            assert!(most <= bound, "{name}: {count} patches took {most} bytes where {bound} are declared");
        }
    }
}

/// The golden model for larger pictures and longer prompts.
fn folder() -> std::path::PathBuf {
    let to = std::env::temp_dir().join(format!("bn-picture-memory-{}", std::process::id()));
    std::fs::create_dir_all(&to).unwrap();
    for entry in std::fs::read_dir(common::root().join("tests/golden/towers/qwen35")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let name = path.file_name().unwrap().to_owned();
        for (from, to) in
            [("\"max_position_embeddings\": 128", "\"max_position_embeddings\": 4096"), ("4096", "262144")]
        {
            if name.to_string_lossy().ends_with(if from == "4096" {
                "preprocessor_config.json"
            } else {
                "config.json"
            }) && let Ok(text) = String::from_utf8(bytes.clone())
            {
                bytes = text.replace(from, to).into();
            }
        }
        std::fs::write(to.join(name), bytes).unwrap();
    }
    to
}

fn request(picture: Picture<'static>, n: u32) -> RequestParams<'static> {
    RequestParams {
        prompt: Prompt::Tokens(vec![5, 58, 60, 59, 3 + n % 20].into()),
        pictures: vec![picture],
        max_new_tokens: 4,
        ignore_eos: true,
        ..Default::default()
    }
}

fn engines_stay_within_their_plan(files: &[(&'static str, Vec<u8>)]) {
    let path = folder();
    HfFolder::open(path.to_str().unwrap()).unwrap();
    let model = || common::load_file(path.to_str().unwrap(), 2).unwrap().loaded;
    drop(model());
    let create = |tokens: u64, limit: u64| -> Engine {
        Engine::create(EngineConfig {
            model: Some(model()),
            threads: 2,
            context_length: 2048,
            max_batch_size: 4,
            picture_tokens: tokens,
            memory_limit_bytes: limit,
            ..Default::default()
        })
        .unwrap()
    };
    for tokens in [16, 1024] {
        let before = LIVE.load(SeqCst);
        PEAK.store(before, SeqCst);
        let engine = create(tokens, 64 << 20);
        engine.pause().unwrap();
        let fixed = engine.stats().memory_used_bytes;
        let weights = engine.facts().weight_bytes;
        let mut count = 0;
        // More than the queue has memory for.
        for n in 0..60u32 {
            let rgb = noise(700 * 700 * 3).into_iter().map(|x| x ^ n as u8).collect::<Vec<_>>();
            let pixels = Picture::Pixels { width: 700, height: 700, rgb: rgb.into() };
            let picture = match files.get(n as usize % 12) {
                Some((name, file)) if !name.ends_with(".jpg") => Picture::Encoded(file.clone().into()),
                _ => pixels,
            };
            count += usize::from(engine.submit(vec![request(picture, n)]).is_ok());
        }
        let queued = engine.stats().memory_used_bytes;
        let held = LIVE.load(SeqCst) - before;
        println!("{tokens} vectors: {count} requests hold {} bytes, {} counted", held, queued - weights);
        assert!(held as u64 <= queued, "{held} bytes are held, and {queued} counted");
        PEAK.store(LIVE.load(SeqCst), SeqCst);
        engine.resume().unwrap();
        collect(&engine, count);
        let stats = engine.stats();
        let (most, declared) = ((PEAK.load(SeqCst) - before) as u64, stats.memory_peak_bytes);
        println!("{tokens} vectors: {most} of {declared} bytes, {fixed} fixed");
        assert!(most <= declared, "{tokens} vectors: {most} bytes were allocated, {declared} declared");
        assert!(declared <= 64 << 20 && stats.memory_used_bytes == fixed, "{stats:?}");
        engine.destroy().unwrap();
        drop(engine);
        let left = LIVE.load(SeqCst).saturating_sub(before);
        assert!(left < 64 << 10, "{left} bytes are left behind");
    }
    std::fs::remove_dir_all(path).unwrap();
}

#[test]
fn pictures_take_what_is_declared() {
    let files = files();
    decoding_takes_what_it_says(&files);
    resizing_takes_what_its_plan_says();
    towers_stay_within_their_workspace();
    engines_stay_within_their_plan(&files);
}
