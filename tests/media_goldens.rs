//! Preprocessing gives the bytes of the published processors (their Pillow backend), tile for tile.

use std::fs;
use std::path::PathBuf;

use etgenai::media::{
    Alpha, DecodeOptions, Image, ImageFamily, ImageProcessor, PixelFormat, PixelTensor, Pixels, TileLayout, Tiling,
};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

fn json(path: &str) -> Map<String, Value> {
    serde_json::from_slice(&fs::read(fixture(path)).unwrap()).unwrap()
}

/// The goldens of one tiny checkpoint.
struct Family {
    processor: ImageProcessor,
    goldens: Vec<u8>,
    mean: [f32; 3],
    std: [f32; 3],
}

impl Family {
    fn load(folder: &str, family: ImageFamily, tile_size: usize) -> Family {
        let settings = json(&format!("tiny/{folder}/preprocessor_config.json"));
        let outer = json(&format!("tiny/{folder}/processor_config.json"));
        let triple = |name: &str| -> [f32; 3] { std::array::from_fn(|i| settings[name][i].as_f64().unwrap() as f32) };
        Family {
            processor: ImageProcessor::from_config(family, Some(&settings), Some(&outer), tile_size).unwrap(),
            goldens: fs::read(fixture(&format!("tiny/{folder}/processor_pil.safetensors"))).unwrap(),
            mean: triple("image_mean"),
            std: triple("image_std"),
        }
    }

    fn smolvlm() -> Family {
        Family::load("smolvlm", ImageFamily::SmolVlm, 64)
    }

    fn internvl3() -> Family {
        Family::load("internvl3", ImageFamily::InternVl, 56)
    }

    /// The levels 0 to 255 a tensor was made from.
    fn levels(&self, tensor: &PixelTensor) -> Vec<u8> {
        let plane = tensor.height * tensor.width;
        let level = |(index, &value): (usize, &f32)| {
            let channel = index / plane % 3;
            ((value * self.std[channel] + self.mean[channel]) * 255.0).round() as u8
        };
        tensor.values.iter().enumerate().map(level).collect()
    }

    /// Compares every picture processed the way `call` names with the golden of that name; returns how many there are.
    fn check(&self, call: &str, tiling: Tiling) -> usize {
        let goldens = SafeTensors::deserialize(&self.goldens).unwrap();
        let mut checked = 0;
        for (name, image) in pictures() {
            let Ok(golden) = goldens.tensor(&format!("{name}.{call}.u8")) else { continue };
            let tensor = self.processor.process(&image, tiling).unwrap();
            let context = format!("{name}, {call}");
            assert_eq!([tensor.tiles, 3, tensor.height, tensor.width], golden.shape(), "{context}");
            assert_eq!(tensor.layout, self.processor.layout_of(&image, tiling).unwrap(), "{context}");
            assert_eq!(differing(&self.levels(&tensor), golden.data()), (0, 0), "{context}");
            if let Ok(values) = goldens.tensor(&format!("{name}.{call}.pixel_values")) {
                assert_eq!(tensor.values, floats(&values), "{context}: bit for bit");
            }
            checked += 1;
        }
        checked
    }
}

/// Number of bytes that differ, and the largest difference.
fn differing(ours: &[u8], golden: &[u8]) -> (usize, u8) {
    assert_eq!(ours.len(), golden.len());
    let differences = ours.iter().zip(golden).map(|(a, b)| a.abs_diff(*b)).filter(|&difference| difference > 0);
    differences.fold((0, 0), |(count, largest), difference| (count + 1, largest.max(difference)))
}

fn floats(tensor: &TensorView<'_>) -> Vec<f32> {
    tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Every picture the goldens were made from: PNG files from their bytes, JPEG files as the reference decoded them
/// (decoders differ by a few levels). The goldens drop the alpha channel, as transformers does for a path.
fn pictures() -> Vec<(String, Image)> {
    let decoded = fs::read(fixture("tiny/smolvlm/processor_torchvision.safetensors")).unwrap();
    let decoded = SafeTensors::deserialize(&decoded).unwrap();
    let options = DecodeOptions { alpha: Alpha::Ignore, ..DecodeOptions::default() };
    let mut pictures = Vec::new();
    for entry in fs::read_dir(fixture("media")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let Ok(rgb) = decoded.tensor(&format!("{name}.rgb_hwc")) else { continue };
        let &[height, width, 3] = rgb.shape() else { panic!("{name}: {:?}", rgb.shape()) };
        let image = if path.extension().unwrap() == "png" {
            let image = Image::open(&path, &options).unwrap();
            assert_eq!(image.rgb(), Some(rgb.data()), "{name}: decoded");
            image
        } else {
            let pixels = Pixels { format: PixelFormat::Rgb8, width, height, row_stride: width * 3, data: rgb.data() };
            Image::from_pixels(&pixels, &options).unwrap()
        };
        assert_eq!((image.width(), image.height()), (width, height), "{name}");
        pictures.push((name, image));
    }
    assert_eq!(pictures.len(), 9, "{pictures:?}");
    pictures
}

#[test]
fn smolvlm_stretched_to_the_square_is_exact() {
    assert_eq!(Family::smolvlm().check("fixed64", Tiling::Single), 9);
}

#[test]
fn smolvlm_without_splitting_is_exact() {
    assert_eq!(Family::smolvlm().check("nosplit", Tiling::Whole), 9);
}

#[test]
fn smolvlm_split_into_tiles_is_exact() {
    assert_eq!(Family::smolvlm().check("split", Tiling::Split), 3);
    assert_eq!(Family::smolvlm().check("split", Tiling::Checkpoint), 3, "its settings say do_image_splitting");
}

#[test]
fn internvl3_in_one_tile_is_exact() {
    assert_eq!(Family::internvl3().check("fixed", Tiling::Single), 9);
    assert_eq!(Family::internvl3().check("fixed", Tiling::Whole), 9);
    assert_eq!(Family::internvl3().check("fixed", Tiling::Checkpoint), 9, "its settings say no crop_to_patches");
}

#[test]
fn internvl3_in_dynamic_tiles_is_exact() {
    assert_eq!(Family::internvl3().check("tiles", Tiling::Split), 3);
}

/// `split_table` and `tile_table`: crop counts for pictures of many sizes.
#[test]
fn tile_counts_are_those_of_the_tables() {
    let table =
        |folder: &str, name: &str| json(&format!("tiny/{folder}/golden.json"))[name].as_array().unwrap().clone();
    let number = |value: &Value| value.as_u64().unwrap() as usize;
    for (tile_size, column) in [(64, "patches_rows_cols_tiny"), (512, "patches_rows_cols_512")] {
        let processor = ImageProcessor::from_config(ImageFamily::SmolVlm, None, None, tile_size).unwrap();
        for row in table("smolvlm", "split_table") {
            let layout = processor.layout(number(&row["hw"][1]), number(&row["hw"][0]), Tiling::Split).unwrap();
            let [tiles, rows, cols] = [0, 1, 2].map(|i| number(&row[column][i]));
            assert_eq!((layout.tiles(), layout.rows, layout.cols), (tiles, rows, cols), "{row}");
        }
    }
    for (tile_size, column) in [(56, "patches_56"), (448, "patches_448")] {
        let processor = ImageProcessor::from_config(ImageFamily::InternVl, None, None, tile_size).unwrap();
        for row in table("internvl3", "tile_table") {
            let layout = processor.layout(number(&row["hw"][1]), number(&row["hw"][0]), Tiling::Split).unwrap();
            assert_eq!(layout.tiles(), number(&row[column]), "{row}");
            assert_eq!(layout == TileLayout::WHOLE, layout.tiles() == 1, "{row}");
        }
    }
}

/// Rows and columns for many sizes and settings, computed with the published processors.
#[test]
fn grids_are_those_of_the_published_processors() {
    let table = json("media/tile_tables.json");
    let numbers = |value: &Value| -> Vec<usize> {
        value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
    };
    let settings = |name: &str| table[name].as_array().unwrap().iter().map(numbers).collect::<Vec<_>>();
    let processors = |family, settings: Vec<(Value, usize)>| -> Vec<ImageProcessor> {
        let read = |(settings, tile_size): (Value, usize)| {
            ImageProcessor::from_config(family, settings.as_object(), None, tile_size).unwrap()
        };
        settings.into_iter().map(read).collect()
    };
    let smolvlm = settings("smolvlm_longest_edge_tile").into_iter().map(|row| {
        let (longest, tile) = (row[0], row[1]);
        (json!({"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": tile}}), tile)
    });
    let smolvlm = processors(ImageFamily::SmolVlm, smolvlm.collect());
    let internvl = settings("internvl_min_max_tile").into_iter().map(|row| {
        let (least, most, tile) = (row[0], row[1], row[2]);
        (json!({"min_patches": least, "max_patches": most, "size": {"height": tile, "width": tile}}), tile)
    });
    let internvl = processors(ImageFamily::InternVl, internvl.collect());

    let rows = table["width_height_then_rows_cols"].as_array().unwrap();
    assert_eq!(rows.len(), 400);
    for row in rows {
        let [width, height] = [0, 1].map(|i| row[i].as_u64().unwrap() as usize);
        for (processors, grids) in [(&smolvlm, &row[2]), (&internvl, &row[3])] {
            assert_eq!(processors.len(), grids.as_array().unwrap().len());
            for (processor, grid) in processors.iter().zip(grids.as_array().unwrap()) {
                let layout = processor.layout(width, height, Tiling::Split).unwrap();
                let expected = match numbers(grid)[..] {
                    // Not cut, in the two families' own words.
                    [0, 0] | [1, 1] => TileLayout::WHOLE,
                    [rows, cols] => TileLayout { rows, cols, overview: true },
                    _ => panic!("{grid}"),
                };
                assert_eq!(layout, expected, "{width}x{height}, {processor:?}");
            }
        }
    }
}

/// A picture the generator of the goldens computes too.
fn synthetic(width: usize, height: usize) -> Image {
    let mut data = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            let levels = [x * 7 + y * 13 + ((x * y) >> 5), x * x / 9 + y * 3, y * y / 7 + x * 5];
            data.extend(levels.map(|level| (level & 255) as u8));
        }
    }
    let pixels = Pixels { format: PixelFormat::Rgb8, width, height, row_stride: width * 3, data: &data };
    Image::from_pixels(&pixels, &DecodeOptions::default()).unwrap()
}

fn named_picture(name: &str) -> Image {
    match name.strip_prefix("synthetic ").and_then(|size| size.split_once('x')) {
        Some((width, height)) => synthetic(width.parse().unwrap(), height.parse().unwrap()),
        None => Image::open(&fixture("media").join(name), &DecodeOptions::default()).unwrap(),
    }
}

/// The published sizes (512 and 448 pixels), from 1x1 to 8000x8000, one with transparency: every byte, by hash.
#[test]
fn whole_pictures_at_published_sizes_are_exact() {
    // Levels come out as they are.
    let levels_only = json!({"do_rescale": false, "do_normalize": false});
    let processor =
        |family, tile_size| ImageProcessor::from_config(family, levels_only.as_object(), None, tile_size).unwrap();
    let smolvlm = processor(ImageFamily::SmolVlm, 512);
    let internvl3 = processor(ImageFamily::InternVl, 448);
    let goldens = json("media/processor_hashes.json");
    assert_eq!(goldens.len(), 11);
    for (name, golden) in goldens {
        let image = named_picture(&name);
        for (family, processor, call, tiling) in [
            ("smolvlm", &smolvlm, "split", Tiling::Split),
            ("smolvlm", &smolvlm, "whole", Tiling::Whole),
            ("smolvlm", &smolvlm, "single", Tiling::Single),
            ("internvl3", &internvl3, "split", Tiling::Split),
            ("internvl3", &internvl3, "single", Tiling::Single),
        ] {
            let golden = &golden[family][call];
            let tensor = processor.process(&image, tiling).unwrap();
            assert_eq!(tensor.tiles as u64, golden["tiles"], "{name}, {family} {call}");
            let levels: Vec<u8> = tensor.values.iter().map(|&value| value as u8).collect();
            let hash: String = Sha256::digest(&levels).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hash, golden["sha256"], "{name}, {family} {call}");
        }
    }
}
