//! Files of every supported kind become the RGB that Pillow makes of them; files that are broken, too large or of
//! another kind become errors that say so. Nothing panics.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use etgenai::media::{Alpha, DecodeOptions, Image};
use etgenai::{Error, error::Status};
use proptest::prelude::*;
use safetensors::SafeTensors;

fn media() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/media")
}

fn encoded(name: &str) -> Vec<u8> {
    fs::read(media().join("decode").join(name)).unwrap()
}

/// Every file in `decode/`, by name.
static FILES: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let names = fs::read_dir(media().join("decode")).unwrap();
    let mut names: Vec<String> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names.into_iter().map(|name| (name.clone(), encoded(&name))).collect()
});

fn decode(bytes: &[u8]) -> etgenai::Result<Image> {
    Image::decode(bytes, &DecodeOptions::default())
}

/// The largest difference to Pillow each kind of file may have, in levels. Lossless files have none.
fn tolerance(name: &str) -> u8 {
    match name {
        "cmyk.jpg" | "cmyk_no_adobe.jpg" | "ycck.jpg" => 2,
        // Decoders differ in how they interpolate halved colour.
        "420.jpg" | "422.jpg" | "progressive.jpg" | "restarts.jpg" => 4,
        _ if name.ends_with(".jpg") => 2,
        "lossy.webp" | "lossy_alpha.webp" => 2,
        _ => 0,
    }
}

#[test]
fn every_kind_of_file_becomes_the_rgb_of_pillow() {
    let goldens = fs::read(media().join("decode.safetensors")).unwrap();
    let goldens = SafeTensors::deserialize(&goldens).unwrap();
    assert_eq!(FILES.len(), goldens.len());
    for (name, bytes) in FILES.iter() {
        let golden = goldens.tensor(name).unwrap();
        let image = decode(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!([image.height(), image.width(), 3], golden.shape(), "{name}");
        let differences = image.rgb().unwrap().iter().zip(golden.data()).map(|(a, b)| a.abs_diff(*b));
        let largest = differences.max().unwrap();
        assert!(largest <= tolerance(name), "{name}: differs by {largest} levels");
    }
}

#[test]
fn the_background_is_a_choice() {
    let pixel = |alpha| {
        let options = DecodeOptions { alpha, ..DecodeOptions::default() };
        // The first column of the alpha ramp is transparent.
        let image = Image::decode(&encoded("rgba.png"), &options).unwrap();
        <[u8; 3]>::try_from(&image.rgb().unwrap()[..3]).unwrap()
    };
    assert_eq!(pixel(Alpha::Background([1, 2, 3])), [1, 2, 3]);
    assert_eq!(pixel(Alpha::default()), [255; 3]);
    assert_eq!(pixel(Alpha::Ignore), [10, 20, 220]);
}

/// The whole text of the error `decode` must give.
fn refusal(bytes: &[u8], options: &DecodeOptions) -> (Status, String) {
    let error = Image::decode(bytes, options).expect_err("an error was expected");
    (error.code(), error.to_string())
}

#[test]
fn a_png_that_claims_too_many_pixels_is_refused_on_its_header() {
    let mut png = encoded("rgb.png");
    png[16..20].copy_from_slice(&60_000u32.to_be_bytes());
    png[20..24].copy_from_slice(&60_000u32.to_be_bytes());
    let (status, text) = refusal(&png, &DecodeOptions::default());
    assert_eq!(status, Status::InvalidArgument);
    assert!(text.contains("60000x60000") && text.contains("3600000000") && text.contains("67108864"), "{text}");
}

#[test]
fn every_format_is_measured_against_the_limit_of_pixels() {
    for name in ["rgb.png", "444.jpg", "lossless.webp", "lossy.webp", "animated.webp", "palette.gif", "rgb.bmp"] {
        let below = DecodeOptions { max_pixels: 26 * 19 - 1, ..DecodeOptions::default() };
        let (status, text) = refusal(&encoded(name), &below);
        assert_eq!(status, Status::InvalidArgument, "{name}");
        assert!(text.contains("26x19") && text.contains("494") && text.contains("493"), "{name}: {text}");
        let exact = DecodeOptions { max_pixels: 26 * 19, ..DecodeOptions::default() };
        assert!(Image::decode(&encoded(name), &exact).is_ok(), "{name}");
    }
}

#[test]
fn a_side_longer_than_any_jpeg_is_refused() {
    let mut png = encoded("rgb.png");
    png[16..20].copy_from_slice(&1u32.to_be_bytes());
    png[20..24].copy_from_slice(&65_536u32.to_be_bytes());
    let (_, text) = refusal(&png, &DecodeOptions::default());
    assert!(text.contains("1x65536") && text.contains("65535"), "{text}");
}

#[test]
fn a_file_larger_than_the_limit_is_refused_unread() {
    let bytes = encoded("rgb.png");
    let options = DecodeOptions { max_bytes: bytes.len() as u64 - 1, ..DecodeOptions::default() };
    let path = media().join("decode/rgb.png");
    for text in [refusal(&bytes, &options).1, Image::open(&path, &options).unwrap_err().to_string()] {
        assert!(text.contains(&bytes.len().to_string()) && text.contains("max_bytes"), "{text}");
    }
    let exact = DecodeOptions { max_bytes: bytes.len() as u64, ..DecodeOptions::default() };
    assert_eq!(Image::open(&path, &exact).unwrap(), decode(&bytes).unwrap());
}

#[test]
fn sides_of_zero_are_refused() {
    let mut png = encoded("rgb.png");
    png[16..20].copy_from_slice(&[0; 4]);
    let (_, text) = refusal(&png, &DecodeOptions::default());
    assert!(text.contains("0x19"), "{text}");
    let mut gif = encoded("palette.gif");
    gif[6..8].copy_from_slice(&[0; 2]);
    refusal(&gif, &DecodeOptions::default());
    let mut bmp = encoded("rgb.bmp");
    bmp[18..22].copy_from_slice(&[0; 4]);
    refusal(&bmp, &DecodeOptions::default());
}

#[test]
fn what_is_no_picture_is_named() {
    let options = DecodeOptions::default();
    let (status, text) = refusal(b"", &options);
    assert_eq!(status, Status::Format);
    assert!(text.contains("0 bytes"), "{text}");
    for bytes in [&b"hello, this is text"[..], b"II*\0\x08\0\0\0\0\0", b"\x89", b"%PDF-1.7"] {
        let (status, text) = refusal(bytes, &options);
        assert_eq!(status, Status::Unsupported);
        assert!(text.contains("JPEG, PNG, WebP, BMP, GIF"), "{text}");
    }
}

#[test]
fn errors_of_open_name_the_path() {
    let options = DecodeOptions::default();
    let missing = Image::open(Path::new("no/such/picture.png"), &options).unwrap_err();
    assert!(matches!(missing, Error::NotFound(_)) && missing.to_string().contains("no/such/picture.png"), "{missing}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("half.png");
    fs::write(&path, &encoded("rgb.png")[..60]).unwrap();
    let half = Image::open(&path, &options).unwrap_err();
    assert!(matches!(half, Error::Format { .. }) && half.to_string().contains("half.png"), "{half}");
    assert!(Image::open(folder.path(), &options).is_err(), "a folder is no picture");
}

/// A file cut anywhere is an error, or, where only trailers are lost, the same picture. Never part of one.
#[test]
fn a_truncated_file_is_never_half_a_picture() {
    for (name, bytes) in FILES.iter() {
        let whole = decode(bytes).unwrap();
        for length in 0..bytes.len() {
            if let Ok(image) = decode(&bytes[..length]) {
                assert_eq!(image, whole, "{name} cut to {length} of {} bytes", bytes.len());
            }
        }
    }
}

/// The offset of the EXIF block's own header in a file.
fn exif_offset(bytes: &[u8]) -> usize {
    let starts = |window: &[u8]| window == b"MM\0*" || window == b"II*\0";
    bytes.windows(4).position(starts).unwrap()
}

#[test]
fn a_broken_exif_block_is_ignored() {
    let upright = decode(&encoded("exif1.jpg")).unwrap();
    let turned = encoded("exif6.jpg");
    let at = exif_offset(&turned);
    assert_ne!(decode(&turned).unwrap(), upright);
    let broken = |offset: usize, value: &[u8]| {
        let mut bytes = turned.clone();
        bytes[at + offset..][..value.len()].copy_from_slice(value);
        let image = decode(&bytes).unwrap_or_else(|error| panic!("{value:02x?} at {offset}: {error}"));
        assert_eq!(image, upright, "{value:02x?} at {offset}");
    };
    broken(0, b"XXXX");
    // The directory beyond the block.
    broken(4, &[0xff; 4]);
    // More entries than there are bytes, none of them an orientation.
    broken(8, &[0xff, 0xff, 0x01, 0x13]);
    // Orientations 0 and 9; those of another type.
    let little = turned[at] == b'I';
    let short = |value: u16| if little { value.to_le_bytes() } else { value.to_be_bytes() };
    broken(18, &short(0));
    broken(18, &short(9));
    broken(12, &short(7));
}

#[test]
fn a_truncated_exif_block_is_ignored() {
    let bytes = encoded("exif6.jpg");
    let app1 = bytes.windows(2).position(|pair| pair == [0xff, 0xe1]).unwrap();
    let length = usize::from(u16::from_be_bytes([bytes[app1 + 2], bytes[app1 + 3]]));
    let upright = decode(&encoded("exif1.jpg")).unwrap();
    for kept in 2..length.min(8 + 18) {
        let mut cut = bytes[..app1 + 2].to_vec();
        cut.extend_from_slice(&(kept as u16).to_be_bytes());
        cut.extend_from_slice(&bytes[app1 + 4..][..kept - 2]);
        cut.extend_from_slice(&bytes[app1 + 2 + length..]);
        let image = decode(&cut).unwrap_or_else(|error| panic!("{kept} of {length} bytes: {error}"));
        assert_eq!(image, upright, "{kept} of {length} bytes");
    }
}

#[test]
fn equal_pictures_have_equal_hashes() {
    let (png, bmp) = (decode(&encoded("rgb.png")).unwrap(), decode(&encoded("rgb.bmp")).unwrap());
    assert_eq!(png.content_hash(), bmp.content_hash());
    assert_eq!(png, bmp);
    assert_ne!(png, decode(&encoded("exif6.png")).unwrap());
    assert_eq!(format!("{png:?}"), "Image(26x19)");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

    /// Any change to any file: a picture within the limits or an error.
    #[test]
    fn damaged_files_never_panic(
        pick in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        length in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = pick.get(&FILES).1.clone();
        for (at, value) in changes {
            *at.get_mut(&mut bytes) = value;
        }
        if cut {
            bytes.truncate(length.index(bytes.len()));
        }
        let options = DecodeOptions { max_pixels: 1 << 20, ..DecodeOptions::default() };
        match Image::decode(&bytes, &options) {
            Ok(image) => prop_assert!(image.width() * image.height() <= 1 << 20),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
