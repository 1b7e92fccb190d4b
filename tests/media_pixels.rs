//! Pictures that are not files: pixels in memory, camera frames, ready tensors.

use std::path::Path;

use etgenai::media::{
    Alpha, DecodeOptions, Image, ImageFamily, ImageProcessor, PixelFormat, Pixels, TileLayout, Tiling, Yuv420, YuvRange,
};

fn options() -> DecodeOptions {
    DecodeOptions::default()
}

fn open(name: &str) -> Image {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/media").join(name);
    Image::open(&path, &options()).unwrap()
}

fn pixels(format: PixelFormat, width: usize, height: usize, row_stride: usize, data: &[u8]) -> Pixels<'_> {
    Pixels { format, width, height, row_stride, data }
}

/// `image` in another layout, rows `stride` bytes apart, garbage in the gaps and none after the last row.
fn laid_out(image: &Image, stride: usize, pixel: impl Fn(&[u8; 3]) -> Vec<u8>) -> Vec<u8> {
    let mut data = Vec::new();
    for row in image.rgb().unwrap().chunks(image.width() * 3) {
        data.resize(data.len().next_multiple_of(stride), 0xee);
        data.extend(row.as_chunks::<3>().0.iter().flat_map(&pixel));
    }
    data
}

#[test]
fn every_layout_and_stride_gives_the_same_picture() {
    let image = open("rgb_45x130.png");
    let (width, height) = (image.width(), image.height());
    for padding in [0, 1, 7, 64] {
        let check = |format: PixelFormat, pixel: &dyn Fn(&[u8; 3]) -> Vec<u8>| {
            let stride = width * format.bytes_per_pixel() + padding;
            let data = laid_out(&image, stride, pixel);
            let read = Image::from_pixels(&pixels(format, width, height, stride, &data), &options()).unwrap();
            assert_eq!(read.rgb(), image.rgb(), "{format:?} with {padding} bytes of padding");
            assert_eq!(read, image);
        };
        check(PixelFormat::Rgb8, &|&[r, g, b]| vec![r, g, b]);
        check(PixelFormat::Rgba8, &|&[r, g, b]| vec![r, g, b, 255]);
        check(PixelFormat::Bgra8, &|&[r, g, b]| vec![b, g, r, 255]);
    }
    let gray = [7, 8, 9, 0, 10, 11, 12];
    let read = Image::from_pixels(&pixels(PixelFormat::Gray8, 3, 2, 4, &gray), &options()).unwrap();
    assert_eq!(read.rgb().unwrap(), [7, 7, 7, 8, 8, 8, 9, 9, 9, 10, 10, 10, 11, 11, 11, 12, 12, 12]);
}

#[test]
fn transparency_of_raw_pixels_shows_the_background() {
    let data = [200, 100, 50, 0, 200, 100, 50, 255, 200, 100, 50, 51];
    let seen = |format, alpha| {
        let options = DecodeOptions { alpha, ..options() };
        Image::from_pixels(&pixels(format, 3, 1, 12, &data), &options).unwrap().rgb().unwrap().to_vec()
    };
    // 51/255 = 1/5.
    assert_eq!(seen(PixelFormat::Rgba8, Alpha::default()), [255, 255, 255, 200, 100, 50, 244, 224, 214]);
    assert_eq!(seen(PixelFormat::Bgra8, Alpha::Background([0; 3])), [0, 0, 0, 50, 100, 200, 10, 20, 40]);
    assert_eq!(seen(PixelFormat::Rgba8, Alpha::Ignore), [200, 100, 50, 200, 100, 50, 200, 100, 50]);
}

#[test]
fn impossible_pixels_are_refused_with_the_numbers() {
    let refused = |pixels: Pixels<'_>, words: &[&str]| {
        let text = Image::from_pixels(&pixels, &options()).unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let data = [0; 24];
    refused(pixels(PixelFormat::Rgb8, 0, 4, 3, &data), &["0x4"]);
    refused(pixels(PixelFormat::Rgb8, 4, 0, 12, &data), &["4x0"]);
    refused(pixels(PixelFormat::Rgb8, 4, 2, 11, &data), &["11 bytes", "12 bytes"]);
    refused(pixels(PixelFormat::Rgb8, 4, 2, 13, &data), &["25 bytes", "24"]);
    refused(pixels(PixelFormat::Gray8, 4, 2, 0, &data), &["stride of 0"]);
    refused(pixels(PixelFormat::Rgba8, 8001, 8400, usize::MAX, &data), &["8001x8400", "67208400", "67108864"]);
    refused(pixels(PixelFormat::Rgba8, usize::MAX, usize::MAX, usize::MAX, &data), &["65535"]);
    refused(pixels(PixelFormat::Rgba8, 100, 1000, usize::MAX / 3, &data), &["too many"]);
}

/// The planes of a picture, as a camera would give them: BT.601, colour averaged over four pixels.
struct Planes {
    y: Vec<u8>,
    u: Vec<u8>,
    v: Vec<u8>,
}

fn planes(image: &Image, range: YuvRange) -> Planes {
    let (width, height) = (image.width(), image.height());
    let (luma, chroma, offset) = match range {
        YuvRange::Full => (1.0, 1.0, 0.0),
        YuvRange::Limited => (219.0 / 255.0, 224.0 / 255.0, 16.0),
    };
    let rgb = image.rgb().unwrap().as_chunks::<3>().0;
    let at = |x: usize, y: usize| rgb[y.min(height - 1) * width + x.min(width - 1)].map(f64::from);
    let brightness = |[r, g, b]: [f64; 3]| 0.299 * r + 0.587 * g + 0.114 * b;
    let level = |value: f64| value.round().clamp(0.0, 255.0) as u8;
    let mut planes = Planes { y: Vec::new(), u: Vec::new(), v: Vec::new() };
    for y in 0..height {
        planes.y.extend((0..width).map(|x| level(brightness(at(x, y)) * luma + offset)));
    }
    for y in (0..height).step_by(2) {
        for x in (0..width).step_by(2) {
            let four = [at(x, y), at(x + 1, y), at(x, y + 1), at(x + 1, y + 1)];
            let mean: [f64; 3] = std::array::from_fn(|c| four.iter().map(|pixel| pixel[c]).sum::<f64>() / 4.0);
            planes.u.push(level((mean[2] - brightness(mean)) / 1.772 * chroma + 128.0));
            planes.v.push(level((mean[0] - brightness(mean)) / 1.402 * chroma + 128.0));
        }
    }
    planes
}

fn frame<'a>(image: &Image, planes: &'a Planes, range: YuvRange) -> Yuv420<'a> {
    Yuv420 {
        width: image.width(),
        height: image.height(),
        y: &planes.y,
        y_row_stride: image.width(),
        u: &planes.u,
        v: &planes.v,
        uv_row_stride: image.width().div_ceil(2),
        uv_pixel_stride: 1,
        range,
    }
}

/// A picture whose colour changes only every two pixels, so that halving it loses nothing.
fn blocks(width: usize, height: usize) -> Image {
    let data: Vec<u8> = (0..width * height)
        .flat_map(|i| {
            let (x, y) = (i % width / 2, i / width / 2);
            [(40 + 23 * x % 150) as u8, (60 + 31 * y % 130) as u8, (50 + 17 * (x + y) % 160) as u8]
        })
        .collect();
    Image::from_pixels(&pixels(PixelFormat::Rgb8, width, height, width * 3, &data), &options()).unwrap()
}

fn largest_difference(a: &Image, b: &Image) -> u8 {
    assert_eq!((a.width(), a.height()), (b.width(), b.height()));
    a.rgb().unwrap().iter().zip(b.rgb().unwrap()).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

#[test]
fn camera_planes_give_the_picture_they_were_made_from() {
    for (width, height) in [(16, 12), (17, 13), (1, 1), (1, 8), (9, 1)] {
        let image = blocks(width, height);
        for range in [YuvRange::Full, YuvRange::Limited] {
            let planes = planes(&image, range);
            let read = Image::from_yuv420(&frame(&image, &planes, range), &options()).unwrap();
            // Rounding of Y, U and V to bytes; a level of limited range is 1.16 of full range.
            let largest = largest_difference(&image, &read);
            assert!(largest <= 3, "{width}x{height} {range:?}: {largest}");
        }
    }
}

/// Black, white, grey and the primaries, by the numbers of BT.601.
#[test]
fn reference_colours_come_out_right() {
    let colour = |range, y: u8, u: u8, v: u8| {
        let frame = Yuv420 {
            width: 1,
            height: 1,
            y: &[y],
            y_row_stride: 1,
            u: &[u],
            v: &[v],
            uv_row_stride: 1,
            uv_pixel_stride: 1,
            range,
        };
        <[u8; 3]>::try_from(Image::from_yuv420(&frame, &options()).unwrap().rgb().unwrap()).unwrap()
    };
    assert_eq!(colour(YuvRange::Full, 0, 128, 128), [0, 0, 0]);
    assert_eq!(colour(YuvRange::Full, 255, 128, 128), [255, 255, 255]);
    assert_eq!(colour(YuvRange::Full, 76, 85, 255), [254, 0, 0]);
    assert_eq!(colour(YuvRange::Limited, 16, 128, 128), [0, 0, 0]);
    assert_eq!(colour(YuvRange::Limited, 235, 128, 128), [255, 255, 255]);
    assert_eq!(colour(YuvRange::Limited, 126, 128, 128), [128, 128, 128]);
    assert_eq!(colour(YuvRange::Limited, 81, 90, 240), [254, 0, 0]);
    // Below black and above white there is nothing.
    assert_eq!(colour(YuvRange::Limited, 0, 128, 128), [0, 0, 0]);
    assert_eq!(colour(YuvRange::Limited, 255, 128, 128), [255, 255, 255]);
}

#[test]
fn interleaved_and_padded_planes_are_the_same_frame() {
    let image = blocks(17, 13);
    let planar = planes(&image, YuvRange::Full);
    let expected = Image::from_yuv420(&frame(&image, &planar, YuvRange::Full), &options()).unwrap();
    let (columns, rows) = (9, 7);
    // NV12 with 5 bytes of padding a row: U first. The V plane starts one byte later and ends with the buffer; the U
    // plane ends one byte before, as Android hands it out.
    let stride = 2 * columns + 5;
    let mut chroma = vec![0xee; stride * (rows - 1) + 2 * columns];
    for row in 0..rows {
        for column in 0..columns {
            chroma[row * stride + 2 * column] = planar.u[row * columns + column];
            chroma[row * stride + 2 * column + 1] = planar.v[row * columns + column];
        }
    }
    let mut luma = vec![0xee; 32 * 12 + 17];
    for (row, y) in planar.y.chunks(17).enumerate() {
        luma[row * 32..][..17].copy_from_slice(y);
    }
    let interleaved = Yuv420 {
        y: &luma,
        y_row_stride: 32,
        u: &chroma[..chroma.len() - 1],
        v: &chroma[1..],
        uv_row_stride: stride,
        uv_pixel_stride: 2,
        ..frame(&image, &planar, YuvRange::Full)
    };
    assert_eq!(Image::from_yuv420(&interleaved, &options()).unwrap().rgb(), expected.rgb());
}

#[test]
fn impossible_planes_are_refused() {
    let image = blocks(17, 13);
    let planar = planes(&image, YuvRange::Full);
    let good = frame(&image, &planar, YuvRange::Full);
    let refused = |frame: Yuv420<'_>, words: &[&str]| {
        let text = Image::from_yuv420(&frame, &options()).unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    refused(Yuv420 { y: &planar.y[1..], ..good }, &["Y plane", "221", "220"]);
    refused(Yuv420 { u: &planar.u[1..], ..good }, &["U plane", "63", "62"]);
    refused(Yuv420 { v: &[], ..good }, &["V plane", "63"]);
    refused(Yuv420 { y_row_stride: 16, ..good }, &["Y plane", "16"]);
    refused(Yuv420 { uv_row_stride: 8, ..good }, &["U plane", "8"]);
    refused(Yuv420 { uv_pixel_stride: 0, ..good }, &["stride of 0"]);
    refused(Yuv420 { uv_pixel_stride: 3, ..good }, &["stride of 3"]);
    refused(Yuv420 { width: 0, ..good }, &["0x13"]);
    refused(Yuv420 { height: usize::MAX, ..good }, &["65535"]);
}

fn processor() -> ImageProcessor {
    ImageProcessor::from_config(ImageFamily::SmolVlm, None, None, 4).unwrap()
}

#[test]
fn a_ready_tensor_passes_through_untouched() {
    let values: Vec<f32> = (0..3 * 3 * 16).map(|i| i as f32 * 0.25 - 7.0).collect();
    let layout = TileLayout { rows: 1, cols: 2, overview: true };
    let image = Image::from_tensor_with_layout(values.clone(), [3, 3, 4, 4], layout).unwrap();
    assert_eq!((image.width(), image.height(), image.rgb()), (4, 4, None));
    assert_eq!(format!("{image:?}"), "Image(tensor [3, 3, 4, 4])");
    for tiling in [Tiling::Checkpoint, Tiling::Split, Tiling::Whole, Tiling::Single] {
        let tensor = processor().process(&image, tiling).unwrap();
        assert_eq!((tensor.tiles, tensor.height, tensor.width, tensor.layout), (3, 4, 4, layout));
        assert_eq!(tensor.values, values);
        assert_eq!(tensor.tile(2), Some(&values[96..]));
        assert_eq!(tensor.tile(3), None);
    }
    let one = Image::from_tensor(values[..48].to_vec(), [1, 3, 4, 4]).unwrap();
    assert_eq!(processor().layout_of(&one, Tiling::Split).unwrap(), TileLayout::WHOLE);
    let row = Image::from_tensor(values.clone(), [3, 3, 4, 4]).unwrap();
    let crops = TileLayout { rows: 1, cols: 3, overview: false };
    assert_eq!(processor().layout_of(&row, Tiling::Split).unwrap(), crops);
    assert_ne!(row, image, "the layout belongs to the content");
}

#[test]
fn impossible_tensors_are_refused() {
    let refused = |values: usize, shape: [usize; 4], layout: TileLayout, words: &[&str]| {
        let text = Image::from_tensor_with_layout(vec![0.0; values], shape, layout).unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    refused(48, [1, 4, 4, 3], TileLayout::WHOLE, &["[1, 4, 4, 3]"]);
    refused(0, [0, 3, 4, 4], TileLayout::WHOLE, &["[0, 3, 4, 4]"]);
    refused(47, [1, 3, 4, 4], TileLayout::WHOLE, &["47", "48"]);
    refused(48, [1, 3, usize::MAX, usize::MAX], TileLayout::WHOLE, &["too many"]);
    refused(96, [2, 3, 4, 4], TileLayout::WHOLE, &["2 tiles"]);
    refused(48, [1, 3, 4, 4], TileLayout { rows: usize::MAX, cols: 2, overview: true }, &["1 tiles"]);
    assert!(Image::from_tensor(Vec::new(), [0, 3, 4, 4]).is_err());

    let other_size = Image::from_tensor(vec![0.0; 75], [1, 3, 5, 5]).unwrap();
    let text = processor().process(&other_size, Tiling::Checkpoint).unwrap_err().to_string();
    assert!(text.contains("5x5") && text.contains("4x4"), "{text}");
}

#[test]
fn pictures_cross_threads_and_share_their_content() {
    fn shared<T: Send + Sync + Clone>(_: &T) {}
    let image = blocks(4, 4);
    shared(&image);
    let copy = image.clone();
    assert_eq!(copy.rgb().unwrap().as_ptr(), image.rgb().unwrap().as_ptr());
    assert_eq!(std::thread::spawn(move || copy.content_hash()).join().unwrap(), image.content_hash());
}
