//! What a conversation is given in files: pictures, audio features and token ids.

use etgenai::media::{DecodeOptions, Image};
use etgenai::{Error, Result};
use std::path::{Path, PathBuf};

/// The pictures that `--image_path` means: those a list file names, or the file itself if it is a picture.
///
/// `side`: of the square picture the encoder takes. A file of exactly its three planes of f32 is such a tensor; any other
/// file is decoded.
///
/// # Errors
/// [`Error::NotFound`] or [`Error::Io`] naming the file, [`Error::InvalidArgument`] for a file that is neither, with both
/// sizes.
pub fn pictures(path: &Path, side: usize) -> Result<Vec<Image>> {
    let bytes = read(path)?;
    if let Some(picture) = picture_in(path, &bytes, side)? {
        return Ok(vec![picture]);
    }
    let list = String::from_utf8(bytes)
        .map_err(|_| Error::format(path, "content", "neither a picture, nor a tensor, nor a list of paths"))?;
    listed(&list).iter().map(|path| picture(path, side)).collect()
}

/// The features of the audio that `--audio_path` means: those a list file names, or the file itself if it holds exactly
/// `values` f32 numbers.
///
/// # Errors
/// As [`pictures`].
pub fn features(path: &Path, values: usize) -> Result<Vec<Vec<f32>>> {
    let size = values.saturating_mul(size_of::<f32>());
    let bytes = read(path)?;
    if bytes.len() == size {
        return Ok(vec![floats(&bytes)]);
    }
    let list = String::from_utf8(bytes)
        .map_err(|_| Error::format(path, "content", "neither audio features nor a list of paths"))?;
    let listed = listed(&list);
    let features = listed.iter().map(|path| {
        let bytes = read(path)?;
        match bytes.len() == size {
            true => Ok(floats(&bytes)),
            false => {
                let (path, have) = (path.display(), bytes.len());
                Err(Error::invalid(format!(
                    "{path}: {have} bytes are not the {size} bytes of the encoder's f32 features"
                )))
            }
        }
    });
    features.collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap_or_default())).collect()
}

/// Paths in a list: lines of them with single spaces between. A line that is a file as a whole is one path, spaces and all.
fn listed(list: &str) -> Vec<PathBuf> {
    let lines = list.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let paths = lines.flat_map(|line| match Path::new(line).is_file() {
        true => vec![line],
        false => line.split(' ').filter(|path| !path.is_empty()).collect(),
    });
    paths.map(PathBuf::from).collect()
}

fn picture(path: &Path, side: usize) -> Result<Image> {
    let bytes = read(path)?;
    picture_in(path, &bytes, side)?.ok_or_else(|| {
        let (have, want) = (bytes.len(), tensor_bytes(side));
        Error::invalid(format!(
            "{}: {have} bytes are neither a picture nor the {want} bytes of a f32 tensor 3 x {side} x {side}",
            path.display()
        ))
    })
}

/// The picture a file holds, if it looks like holding one.
fn picture_in(path: &Path, bytes: &[u8], side: usize) -> Result<Option<Image>> {
    if bytes.len() == tensor_bytes(side) {
        let values =
            bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap_or_default())).collect();
        return Image::from_tensor(values, [1, 3, side, side]).map(Some);
    }
    if !is_picture(bytes) {
        return Ok(None);
    }
    Image::open(path, &DecodeOptions::default()).map(Some)
}

fn tensor_bytes(side: usize) -> usize {
    3usize.saturating_mul(side).saturating_mul(side).saturating_mul(size_of::<f32>())
}

/// Whether a file begins like JPEG, PNG, GIF, BMP or WebP.
fn is_picture(bytes: &[u8]) -> bool {
    const BEGINNINGS: [&[u8]; 5] = [b"\xFF\xD8\xFF", b"\x89PNG\r\n\x1A\n", b"GIF87a", b"GIF89a", b"BM"];
    let is_webp = bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP");
    is_webp || BEGINNINGS.iter().any(|beginning| bytes.starts_with(beginning))
}

/// The token ids of a file: 64-bit little-endian, nothing else.
///
/// # Errors
/// [`Error::NotFound`] or [`Error::Io`], [`Error::Format`] for a size that is no whole number of ids, none at all, or an
/// id that is none.
pub fn token_ids(path: &Path) -> Result<Vec<u32>> {
    let bytes = read(path)?;
    if bytes.is_empty() || !bytes.len().is_multiple_of(8) {
        let reason = format!("{} bytes are no list of ids of 8 bytes", bytes.len());
        return Err(Error::format(path, "size", reason));
    }
    let ids = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    let id = |(index, id): (usize, u64)| {
        u32::try_from(id).map_err(|_| Error::format(path, format!("id number {index}"), format!("{id} is no token id")))
    };
    ids.enumerate().map(id).collect()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::NotFound(format!("{}: there is no such file", path.display())),
        _ => Error::io(path, e),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: usize = 2;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn write(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn tensor(first: f32) -> Vec<u8> {
        (0..12u8).flat_map(|at| (first + f32::from(at)).to_le_bytes()).collect()
    }

    #[test]
    fn lists_hold_lines_of_paths() {
        assert_eq!(listed("a.raw b.raw\r\n\nc.raw\n"), ["a.raw", "b.raw", "c.raw"].map(PathBuf::from));
        assert_eq!(listed("a  b"), ["a", "b"].map(PathBuf::from));
        assert!(listed("\r\n\n").is_empty());
        let folder = folder();
        let spaced = write(&folder, "a picture", b"");
        assert_eq!(listed(&format!("{}\n", spaced.display())), [spaced]);
    }

    #[test]
    fn tensors_and_pictures_mix() {
        let folder = folder();
        let raw = write(&folder, "a.raw", &tensor(1.0));
        let png = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/media/gray_33x47.png");
        let list = write(&folder, "list.txt", format!("{} {}\n", raw.display(), png.display()).as_bytes());
        let pictures_of = |path: &Path| pictures(path, SIDE).unwrap();
        let [a, b] = &pictures_of(&list)[..] else { panic!("two pictures") };
        assert_eq!(a.tensor().map(|(values, _)| (values.len(), values[0], values[11])), Some((12, 1.0, 12.0)));
        assert_eq!((b.width(), b.height()), (33, 47));
        assert_eq!(pictures_of(&raw), std::slice::from_ref(a));
        assert_eq!(pictures_of(&png), std::slice::from_ref(b));
    }

    #[test]
    fn files_that_are_no_pictures_name_both_sizes() {
        let folder = folder();
        let short = write(&folder, "short.raw", &tensor(0.0)[..44]);
        let list = write(&folder, "list.txt", short.display().to_string().as_bytes());
        let error = pictures(&list, SIDE).unwrap_err().to_string();
        assert!(error.contains("44 bytes are neither a picture nor the 48 bytes of a f32 tensor 3 x 2 x 2"), "{error}");
        let error = pictures(&short, SIDE).unwrap_err().to_string();
        assert!(error.contains("short.raw"), "{error}");
        let list = write(&folder, "list.txt", b"there/is/no.raw");
        assert!(matches!(pictures(&list, SIDE), Err(Error::NotFound(text)) if text.contains("there/is/no.raw")));
        let damaged = write(&folder, "damaged.png", b"\x89PNG\r\n\x1A\n....");
        assert!(pictures(&damaged, SIDE).is_err());
    }

    #[test]
    fn audio_features_have_exactly_the_encoders_size() {
        let folder = folder();
        let raw = write(&folder, "a.raw", &tensor(3.0));
        let list = write(&folder, "list.txt", format!("{0}\n{0}", raw.display()).as_bytes());
        assert_eq!(features(&raw, 12).unwrap(), [(3..15u8).map(f32::from).collect::<Vec<_>>()]);
        assert_eq!(features(&list, 12).unwrap().len(), 2);
        let error = features(&list, 13).unwrap_err().to_string();
        assert!(error.contains("48 bytes are not the 52 bytes of the encoder's f32 features"), "{error}");
    }

    #[test]
    fn token_files_hold_whole_ids() {
        let folder = folder();
        let bytes: Vec<u8> = [1u64, 403, 407].iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(token_ids(&write(&folder, "ids", &bytes)).unwrap(), [1, 403, 407]);
        for (bytes, says) in [(&bytes[..9], "9 bytes are no list"), (b"", "0 bytes"), (&[0xFF; 8], "id number 0")] {
            let error = token_ids(&write(&folder, "bad", bytes)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(matches!(token_ids(&folder.path().join("none")), Err(Error::NotFound(_))));
    }
}
