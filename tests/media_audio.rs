//! Sound becomes the features of the published processor; what is no sound is an error that says why.

use etgenai::error::Status;
use etgenai::media::{Audio, AudioProcessor};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};
use std::fs;
use std::io::Cursor;
use std::path::PathBuf;

/// The golden recording: 21,920 samples at 16 kHz.
const CHIRP: &str = "media/chirp_16k_21920.wav";

fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

fn settings(file: &str) -> Map<String, Value> {
    serde_json::from_slice(&fs::read(fixture(&format!("tiny/granite_speech/{file}"))).unwrap()).unwrap()
}

fn published() -> AudioProcessor {
    AudioProcessor::from_config(None, None).unwrap()
}

fn golden(name: &str) -> (Vec<usize>, Vec<f32>) {
    let file = fs::read(fixture("tiny/granite_speech/features.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let tensor = file.tensor(name).unwrap();
    let values = tensor.data().chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect();
    (tensor.shape().to_vec(), values)
}

/// A WAV file of these interleaved samples, written by `write`.
fn wav<S: hound::Sample + Copy>(spec: hound::WavSpec, samples: &[S]) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let mut writer = hound::WavWriter::new(&mut bytes, spec).unwrap();
    samples.iter().for_each(|&sample| writer.write_sample(sample).unwrap());
    writer.finalize().unwrap();
    bytes.into_inner()
}

fn spec(channels: u16, bits: u16, sample_format: hound::SampleFormat) -> hound::WavSpec {
    hound::WavSpec { channels, sample_rate: 16_000, bits_per_sample: bits, sample_format }
}

fn complaint<T: std::fmt::Debug>(outcome: etgenai::Result<T>) -> (Status, String) {
    let error = outcome.expect_err("it makes no sense");
    (error.code(), error.to_string())
}

#[test]
fn features_are_those_of_the_published_processor() {
    let chirp = Audio::open(&fixture(CHIRP)).unwrap();
    let from_files = AudioProcessor::from_config(
        Some(&settings("preprocessor_config.json")),
        Some(&settings("processor_config.json")),
    );
    let processor = from_files.unwrap();
    assert_eq!(processor, published());
    // Without padding, and with zeros up to 75 frames.
    for case in ["plain", "padded"] {
        let (shape, wanted) = golden(&format!("{case}.input_features"));
        let features = processor.process(&chirp, shape[0]).unwrap();
        assert_eq!([features.frames, features.width], shape[..]);
        let worst = features.values.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-4, "{case}: {worst}");
    }
}

#[test]
fn every_encoding_gives_the_same_samples() {
    use hound::SampleFormat::{Float, Int};
    let levels = [-32768i32, -16384, 0, 1, 16384, 32767];
    let wanted = levels.map(|level| level as f32 / 32768.0);
    let read = |bytes: Vec<u8>| Audio::decode(&bytes).unwrap();
    let samples = |audio: &Audio| audio.samples().map(|(samples, rate)| (samples.to_vec(), rate)).unwrap();
    for (bits, shift) in [(16, 0), (24, 8), (32, 16)] {
        let audio = read(wav(spec(1, bits, Int), &levels.map(|level| level << shift)));
        assert_eq!(samples(&audio), (wanted.to_vec(), 16_000), "{bits} bits");
    }
    assert_eq!(samples(&read(wav(spec(1, 32, Float), &wanted))).0, wanted);
    assert_eq!(samples(&read(wav(spec(1, 8, Int), &[-128i8, 0, 64]))).0, [-1.0, 0.0, 0.5]);
    // Channels are averaged, also where their sum exceeds the scale.
    let stereo = wav(spec(2, 16, Int), &[16384i16, 0, -32768, -32768]);
    assert_eq!(samples(&read(stereo)).0, [0.25, -1.0]);
    let six = wav(spec(6, 32, Float), &[6.0f32, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(samples(&read(six)).0, [1.0]);
}

#[test]
fn another_sample_rate_is_resampled() {
    let tone = |rate: u32| -> Audio {
        let count = rate as usize;
        let value = |at: usize| (at as f64 / f64::from(rate) * 700.0 * std::f64::consts::TAU).sin() as f32 * 0.5;
        Audio::from_samples((0..count).map(value).collect(), rate).unwrap()
    };
    let features = |audio: &Audio| published().process(audio, 60).unwrap().values;
    let native = features(&tone(16_000));
    for rate in [8_000, 22_050, 44_100, 48_000] {
        let resampled = features(&tone(rate));
        // The frames in the middle: at both ends the tone begins and stops, which no two rates do alike.
        let inner = 4 * 160..44 * 160;
        let loud = |at: &usize| native[*at] > 1.0;
        let worst = inner.filter(loud).map(|at| (native[at] - resampled[at]).abs()).fold(0.0, f32::max);
        assert!(worst < 0.02, "{rate} Hz: {worst}");
    }
}

#[test]
fn sound_that_is_too_long_names_both_lengths() {
    let processor = published();
    assert_eq!(processor.samples_of(844), 269_920);
    let seconds =
        |seconds: f64, rate: u32| Audio::from_samples(vec![0.1; (seconds * f64::from(rate)) as usize], rate).unwrap();
    for rate in [16_000, 48_000] {
        let (status, error) = complaint(processor.process(&seconds(20.0, rate), 844));
        assert_eq!(status, Status::InvalidArgument);
        assert_eq!(error, "the audio is 20.00 seconds long, this model takes at most 16.87: cut it");
    }
    // 1688 frames of 80 mels, two and two.
    let features = processor.process(&seconds(16.87, 16_000), 844).unwrap();
    assert_eq!([features.frames, features.width], [844, 160]);
    let one_more = Audio::from_samples(vec![0.1; 269_921], 16_000).unwrap();
    assert!(processor.process(&one_more, 844).is_err());
}

#[test]
fn ready_features_are_passed_on_and_counted() {
    let values: Vec<f32> = (0..320).map(|at| at as f32).collect();
    let ready = Audio::from_features(values.clone()).unwrap();
    assert_eq!(published().process(&ready, 2).unwrap().values, values);
    let (_, error) = complaint(published().process(&ready, 3));
    assert_eq!(error, "320 audio features, but the encoder takes 3 x 160");
    assert!(ready.samples().is_none() && ready.seconds().is_none());
}

#[test]
fn silence_and_single_samples_are_sound() {
    for samples in [vec![0.0; 16_000], vec![1.0]] {
        let audio = Audio::from_samples(samples, 16_000).unwrap();
        let features = published().process(&audio, 69).unwrap();
        assert!(features.values.iter().all(|value| value.is_finite()));
    }
    let silence = Audio::from_samples(vec![0.0; 16_000], 16_000).unwrap();
    assert!(published().process(&silence, 69).unwrap().values.iter().all(|&value| value == -1.5));
    // One frame of the encoder is shorter than a transform.
    let (_, error) = complaint(published().process(&Audio::from_samples(vec![0.0], 16_000).unwrap(), 1));
    assert!(error.contains("160 samples are too short"), "{error}");
}

#[test]
fn samples_that_are_none_are_refused() {
    for (samples, rate, says) in [
        (vec![], 16_000, "there are no samples"),
        (vec![0.0, f32::NAN], 16_000, "number 1 of the samples is NaN"),
        (vec![f32::INFINITY], 16_000, "number 0 of the samples is inf"),
        (vec![0.0], 0, "the sample rate is 0 Hz"),
        (vec![0.0], u32::MAX, "not between 1000 and 768000"),
    ] {
        let (status, error) = complaint(Audio::from_samples(samples, rate));
        assert!(status == Status::InvalidArgument && error.contains(says), "{error}");
    }
    assert!(Audio::from_features(vec![]).is_err() && Audio::from_features(vec![f32::NAN]).is_err());
}

#[test]
fn equal_content_is_equal_sound() {
    let sound = |value: f32, rate| Audio::from_samples(vec![value; 3], rate).unwrap();
    assert_eq!(sound(0.5, 16_000), sound(0.5, 16_000));
    assert_ne!(sound(0.5, 16_000), sound(0.25, 16_000));
    assert_ne!(sound(0.5, 16_000), sound(0.5, 8_000));
    assert_ne!(sound(0.5, 16_000), Audio::from_features(vec![0.5; 3]).unwrap());
    assert_eq!(format!("{:?}", sound(0.5, 8_000)), "Audio(3 samples at 8000 Hz)");
}

#[test]
fn files_that_are_no_sound_say_what_is_wrong() {
    let good = fs::read(fixture(CHIRP)).unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = good.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        changed
    };
    let nan = wav(spec(1, 32, hound::SampleFormat::Float), &[0.0, f32::NAN]);
    let none = wav::<i16>(spec(1, 16, hound::SampleFormat::Int), &[]);
    for (bytes, status, says) in [
        (vec![], Status::Format, "0 bytes"),
        (b"OggS....".to_vec(), Status::Unsupported, "use WAV"),
        (b"RIFF".to_vec(), Status::Format, "the file ends before"),
        (with(8, b"AVI "), Status::Format, "no WAVE tag"),
        (with(20, &[2, 0]), Status::Unsupported, "use PCM of 8, 16, 24 or 32 bits"),
        (with(22, &[0, 0]), Status::Format, "zero channels"),
        (with(24, &[0; 8]), Status::Format, "0 Hz"),
        // Four gigabytes are announced; what is there is too short, and nothing of that size is allocated.
        (with(40, &[0xFE, 0xFF, 0xFF, 0xFF]), Status::InvalidArgument, "samples a channel, but at most"),
        (with(40, &[0, 0, 0, 4]), Status::Format, "the file ends before what its header announces"),
        (good[..good.len() - 1].to_vec(), Status::Format, "the file ends before what its header announces"),
        (nan, Status::InvalidArgument, "audio: number 1 of the samples is NaN"),
        (none, Status::Format, "no samples"),
    ] {
        let (found, error) = complaint(Audio::decode(&bytes));
        assert!(found == status && error.contains(says), "{says}: {found:?} {error}");
    }
    let (status, error) = complaint(Audio::open(&fixture("media/there_is_none.wav")));
    assert!(status == Status::NotFound && error.contains("there_is_none.wav"), "{error}");
}

/// Every cut and a great many damaged bytes: an error or sound, and always an answer.
#[test]
fn damage_of_any_kind_is_survived() {
    let good = wav(spec(2, 24, hound::SampleFormat::Int), &[1i32, -2, 3, -4, 5, -6]);
    for length in 0..good.len() {
        assert!(Audio::decode(&good[..length]).is_err(), "{length} bytes");
    }
    let mut heard = 0;
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut damaged = good.clone();
            damaged[at] ^= 1 << bit;
            heard += usize::from(Audio::decode(&damaged).is_ok_and(|audio| audio.samples().is_some()));
        }
    }
    assert!(heard > 0 && heard < good.len() * 8, "{heard}");
}

#[test]
fn settings_are_honoured_or_refused_by_name() {
    let read = |settings: Value| AudioProcessor::from_config(settings.as_object(), None);
    assert_eq!(read(json!({})).unwrap(), published());
    let small = json!({"sampling_rate": 8000, "melspec_kwargs": {"sample_rate": 8000, "n_mels": 40, "hop_length": 80}});
    let processor = read(small.clone()).unwrap();
    assert_eq!((processor.sample_rate(), processor.width(), processor.samples_of(2)), (8000, 80, 240));
    assert_ne!(processor.options_hash(), published().options_hash());
    let nested = json!({"audio_processor": small});
    assert_eq!(AudioProcessor::from_config(None, nested.as_object()).unwrap(), processor);
    let stored = serde_json::to_value(&processor).unwrap();
    assert_eq!(serde_json::from_value::<AudioProcessor>(stored).unwrap(), processor);
    for (settings, says) in [
        (json!({"melspec_kwargs": {"n_fft": "512"}}), "melspec_kwargs.n_fft: \"512\": expected a whole number"),
        (json!({"melspec_kwargs": {"n_mels": 0}}), "n_mels is 0"),
        (json!({"melspec_kwargs": {"win_length": 1024}}), "win_length is 1024, it must be between 1 and 512"),
        (json!({"melspec_kwargs": {"f_min": 20}}), "melspec_kwargs.f_min: 20 is not supported"),
        (json!({"melspec_kwargs": 5}), "melspec_kwargs: 5: expected an object"),
        (json!({"sampling_rate": 8000, "melspec_kwargs": {"n_mels": 80}}), "8000 Hz, but the spectrogram's"),
        (json!({"sampling_rate": -1}), "sampling_rate: -1"),
    ] {
        let (_, error) = complaint(read(settings));
        assert!(error.contains(says), "{error}");
    }
}
