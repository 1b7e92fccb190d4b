//! Preprocessing settings: every field of the published files is honoured or refused by name; what is missing has the
//! published value; what is stored comes back.

use etgenai::error::Status;
use etgenai::media::{DecodeOptions, Image, ImageFamily, ImageProcessor, PixelFormat, Pixels, TileLayout, Tiling};
use serde_json::{Value, json};

const FAMILIES: [ImageFamily; 2] = [ImageFamily::SmolVlm, ImageFamily::InternVl];

fn read(family: ImageFamily, settings: Value, tile_size: usize) -> etgenai::Result<ImageProcessor> {
    ImageProcessor::from_config(family, settings.as_object(), None, tile_size)
}

/// One pixel of this colour through a processor whose tiles have one pixel.
fn normalized(processor: &ImageProcessor, rgb: [u8; 3]) -> Vec<f32> {
    let pixels = Pixels { format: PixelFormat::Rgb8, width: 1, height: 1, row_stride: 3, data: &rgb };
    let image = Image::from_pixels(&pixels, &DecodeOptions::default()).unwrap();
    processor.process(&image, Tiling::Single).unwrap().values
}

#[test]
fn missing_files_mean_the_published_values() {
    let smolvlm = json!({
        "do_convert_rgb": true, "do_image_splitting": true, "do_normalize": true, "do_pad": true, "do_rescale": true,
        "do_resize": true, "image_mean": [0.5, 0.5, 0.5], "image_processor_type": "Idefics3ImageProcessor",
        "image_std": [0.5, 0.5, 0.5], "max_image_size": {"longest_edge": 512}, "processor_class": "Idefics3Processor",
        "resample": 1, "rescale_factor": 0.00392156862745098, "size": {"longest_edge": 2048}
    });
    let internvl = json!({
        "crop_size": null, "crop_to_patches": false, "data_format": "channels_first", "default_to_square": true,
        "device": null, "do_center_crop": null, "do_convert_rgb": true, "do_normalize": true, "do_rescale": true,
        "do_resize": true, "image_mean": [0.485, 0.456, 0.406], "image_processor_type": "GotOcr2ImageProcessorFast",
        "image_std": [0.229, 0.224, 0.225], "input_data_format": null, "max_patches": 12, "min_patches": 1,
        "processor_class": "InternVLProcessor", "resample": 3, "rescale_factor": 0.00392156862745098,
        "return_tensors": null, "size": {"height": 448, "width": 448}
    });
    for (family, published, tile_size) in [(ImageFamily::SmolVlm, smolvlm, 512), (ImageFamily::InternVl, internvl, 448)]
    {
        let missing = ImageProcessor::from_config(family, None, None, tile_size).unwrap();
        assert_eq!(read(family, json!({}), tile_size).unwrap(), missing);
        let nested = json!({"image_processor": published.clone(), "image_seq_len": 64});
        assert_eq!(read(family, published, tile_size).unwrap(), missing);
        let newer = ImageProcessor::from_config(family, None, nested.as_object(), tile_size).unwrap();
        assert_eq!(newer, missing);
        assert_eq!(missing.tile_size(), tile_size);
    }
}

#[test]
fn settings_nested_in_the_processor_file_count() {
    let (old, new) = (json!({"do_image_splitting": true}), json!({"image_processor": {"do_image_splitting": false}}));
    let layout = |processor: Option<&Value>| {
        ImageProcessor::from_config(ImageFamily::SmolVlm, old.as_object(), processor.and_then(Value::as_object), 512)
            .unwrap()
            .layout(100, 100, Tiling::Checkpoint)
            .unwrap()
    };
    assert_eq!(layout(None), TileLayout { rows: 4, cols: 4, overview: true });
    assert_eq!(layout(Some(&new)), TileLayout::WHOLE);
    assert_eq!(layout(Some(&json!({"image_seq_len": 64}))), layout(None));
}

#[test]
fn the_checkpoint_decides_unless_told_otherwise() {
    for (family, switch) in [(ImageFamily::SmolVlm, "do_image_splitting"), (ImageFamily::InternVl, "crop_to_patches")] {
        for on in [true, false] {
            let processor = read(family, json!({switch: on}), 64).unwrap();
            let tiles = |tiling| processor.layout(200, 100, tiling).unwrap().tiles();
            assert_eq!(tiles(Tiling::Checkpoint) > 1, on, "{family:?} {on}");
            assert!(tiles(Tiling::Split) > 1);
            assert_eq!((tiles(Tiling::Whole), tiles(Tiling::Single)), (1, 1));
        }
    }
}

#[test]
fn rescaling_and_normalizing_are_switches() {
    let settings = |rescale: bool, normalize: bool| {
        json!({"do_rescale": rescale, "rescale_factor": 0.5, "do_normalize": normalize,
               "image_mean": [1.0, 2.0, 3.0], "image_std": 4})
    };
    for family in FAMILIES {
        let values =
            |rescale, normalize| normalized(&read(family, settings(rescale, normalize), 1).unwrap(), [9, 6, 3]);
        assert_eq!(values(false, false), [9.0, 6.0, 3.0]);
        assert_eq!(values(true, false), [4.5, 3.0, 1.5]);
        assert_eq!(values(false, true), [2.0, 1.0, 0.0]);
        assert_eq!(values(true, true), [0.875, 0.25, -0.375]);
    }
    let published = normalized(&read(ImageFamily::InternVl, json!({}), 1).unwrap(), [0, 128, 255]);
    let expected = [-0.485 / 0.229, (128.0 / 255.0 - 0.456) / 0.224, (1.0 - 0.406) / 0.225];
    assert!(published.iter().zip(expected).all(|(value, expected)| (f64::from(*value) - expected).abs() < 1e-6));
}

#[test]
fn a_first_size_of_both_sides_is_honoured() {
    // Stretched to 6x2 pixels, then to whole tiles.
    let processor = read(ImageFamily::SmolVlm, json!({"size": {"height": 2, "width": 6}}), 4).unwrap();
    let layout = processor.layout(1000, 1000, Tiling::Split).unwrap();
    assert_eq!((layout.rows, layout.cols), (1, 2));
}

#[test]
fn wrong_settings_are_refused_by_name() {
    let refused = |family, settings: Value, words: &[&str]| {
        let error = read(family, settings.clone(), 64).expect_err(&format!("{settings}"));
        let text = error.to_string();
        assert!(matches!(error.code(), Status::Format | Status::InvalidArgument), "{text}");
        assert!(words.iter().all(|word| text.contains(word)), "{settings}: {text}");
    };
    for family in FAMILIES {
        let refused = |settings, words: &[&str]| refused(family, settings, words);
        refused(json!({"do_resize": false}), &["preprocessor_config.json", "do_resize", "false"]);
        refused(json!({"do_center_crop": true}), &["do_center_crop", "true"]);
        refused(json!({"do_rescale": 1}), &["do_rescale", "1", "true or false"]);
        refused(json!({"do_normalize": "yes"}), &["do_normalize", "yes"]);
        refused(json!({"rescale_factor": "1/255"}), &["rescale_factor", "1/255"]);
        refused(json!({"image_mean": [0.5, 0.5]}), &["image_mean", "[0.5,0.5]"]);
        refused(json!({"image_mean": [0.5, 0.5, null]}), &["image_mean"]);
        refused(json!({"image_mean": 1e300}), &["image_mean", "finite"]);
        refused(json!({"image_std": [0.5, 0.0, 0.5]}), &["image_std", "0.0"]);
        refused(json!({"image_std": -0.5}), &["image_std", "-0.5"]);
        refused(json!({"image_std": 1e-300}), &["image_std"]);
        refused(json!({"resample": 6}), &["resample", "6"]);
        refused(json!({"resample": "lanczos"}), &["resample", "lanczos"]);
        refused(json!({"size": true}), &["size", "true"]);
        refused(json!({"size": {"shortest_edge": 64}}), &["size", "height and width"]);
        refused(json!({"size": {"height": -1, "width": 64}}), &["size.height", "-1"]);
    }
    let smolvlm = |settings, words: &[&str]| refused(ImageFamily::SmolVlm, settings, words);
    smolvlm(json!({"max_image_size": {"longest_edge": 32}}), &["max_image_size.longest_edge", "32", "64"]);
    smolvlm(json!({"max_image_size": 64}), &["max_image_size", "64"]);
    smolvlm(json!({"size": {"longest_edge": 0}}), &["size.longest_edge", "0"]);
    smolvlm(json!({"size": {"height": 64, "width": 5000}}), &["size.width", "5000", "4096"]);
    let internvl = |settings, words: &[&str]| refused(ImageFamily::InternVl, settings, words);
    internvl(json!({"size": {"height": 56, "width": 64}}), &["size.height", "56", "64"]);
    internvl(json!({"size": {"height": 64, "width": 56}}), &["size.width", "56", "64"]);
    internvl(json!({"size": 56}), &["size", "56", "64"]);
    internvl(json!({"min_patches": 0}), &["min_patches", "0"]);
    internvl(json!({"min_patches": 13}), &["min_patches", "13", "12"]);
    internvl(json!({"max_patches": 1_000_000}), &["max_patches", "1000000"]);
    internvl(json!({"max_patches": 1025}), &["max_patches", "1025", "1024"]);
    internvl(json!({"max_patches": 1.5}), &["max_patches", "1.5"]);

    let nested = json!({"image_processor": {"resample": 9}});
    let error = ImageProcessor::from_config(ImageFamily::InternVl, None, nested.as_object(), 64).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("processor_config.json") && text.contains("image_processor.resample"), "{text}");
    for family in FAMILIES {
        for tile_size in [0, 4097, usize::MAX] {
            assert!(read(family, json!({}), tile_size).is_err(), "{tile_size}");
        }
    }
}

#[test]
fn sizes_without_a_picture_are_refused() {
    for family in FAMILIES {
        let processor = read(family, json!({}), 64).unwrap();
        for (width, height) in [(0, 1), (1, 0), (0, 0)] {
            assert!(processor.layout(width, height, Tiling::Checkpoint).is_err());
        }
        // Any other size has a layout, however long.
        for (width, height) in [(1, usize::MAX), (usize::MAX, 1), (usize::MAX, usize::MAX)] {
            let tiles = processor.layout(width, height, Tiling::Split).unwrap().tiles();
            assert!((2..=17).contains(&tiles), "{tiles}");
        }
    }
}

#[test]
fn settings_survive_storage() {
    for settings in [
        json!({}),
        json!({"do_rescale": false, "do_normalize": false, "resample": 5}),
        json!({"image_mean": [0.48145466, 0.4578275, 0.40821073], "size": {"height": 64, "width": 64}}),
    ] {
        for family in FAMILIES {
            let processor = read(family, settings.clone(), 64).unwrap();
            let stored = serde_json::to_string(&processor).unwrap();
            let loaded: ImageProcessor = serde_json::from_str(&stored).unwrap();
            assert_eq!(loaded, processor, "{stored}");
            assert_eq!(loaded.options_hash(Tiling::Split), processor.options_hash(Tiling::Split));
            let mut newer: Value = serde_json::from_str(&stored).unwrap();
            newer["a field of tomorrow"] = json!([1]);
            assert_eq!(serde_json::from_value::<ImageProcessor>(newer).unwrap(), processor);
        }
    }
}

#[test]
fn stored_settings_are_checked() {
    let stored = serde_json::to_value(read(ImageFamily::InternVl, json!({}), 64).unwrap()).unwrap();
    for (field, value) in [("tile_size", json!(0)), ("normalize", json!({"mean": [0, 0, 0], "std": [0, 1, 1]}))] {
        let mut changed = stored.clone();
        changed[field] = value;
        assert!(serde_json::from_value::<ImageProcessor>(changed.clone()).is_err(), "{changed}");
    }
}

#[test]
fn the_hash_of_options_tells_apart_what_changes_the_tensor() {
    let processor = read(ImageFamily::SmolVlm, json!({}), 64).unwrap();
    let [checkpoint, split, whole, single] =
        [Tiling::Checkpoint, Tiling::Split, Tiling::Whole, Tiling::Single].map(|tiling| processor.options_hash(tiling));
    assert_eq!(checkpoint, split, "its settings split");
    assert!(split != whole && whole != single && split != single);
    for other in [json!({"resample": 2}), json!({"size": {"longest_edge": 128}}), json!({"image_std": 0.25})] {
        let other = read(ImageFamily::SmolVlm, other, 64).unwrap();
        assert_ne!(other.options_hash(Tiling::Split), split);
    }
    let internvl = read(ImageFamily::InternVl, json!({}), 64).unwrap();
    assert_eq!(internvl.options_hash(Tiling::Whole), internvl.options_hash(Tiling::Single), "the same tensor");
}
