//! The promise: the engine plug-in ABI (`include/etgenai_engine.h`) carries everything a runner needs. The built-in CPU engine
//! gives the same through it, whatever an engine claims is checked, and a failure at any call leaves a runner that says so
//! and works after a reset.

mod support;

use etgenai::chat::Message;
use etgenai::engine::cpu::{CpuEngine, CpuOptions};
use etgenai::engine::plugin::abi::*;
use etgenai::engine::plugin::{ExportedEngine, PluginEngine};
use etgenai::engine::{ComponentSource, Engine, LoadedComponent};
use etgenai::formats::WeightFormat;
use etgenai::runner::{Decoder, Flow, GenerateOptions, Runner, RunnerOptions};
use etgenai::{Error, Result};
use std::ffi::{c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};

/// A tiny compiled Llama.
static MODEL: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a temporary folder").keep();
    let model = folder.join("model");
    support::compile("llama", &model, WeightFormat::F32, 96, 16);
    model
});

fn cpu() -> CpuEngine {
    CpuEngine::new(CpuOptions { threads: Some(1), ..Default::default() })
}

/// The CPU engine, there and back through the ABI.
fn through_the_abi() -> PluginEngine {
    let functions = ExportedEngine::new(Arc::new(cpu())).into_functions();
    // SAFETY: functions of this library.
    unsafe { PluginEngine::from_functions(&functions) }.expect("our own engine")
}

fn talk(runner: &mut Runner) -> Result<Vec<Vec<u32>>> {
    let options = GenerateOptions { max_new_tokens: Some(8), ..Default::default() };
    let questions = ["What is the sea?", "And the sky?"];
    let turns = questions
        .map(|q| runner.generate(&[Message::user(q)], &options, &mut |_| Flow::Continue).map(|turn| turn.tokens));
    turns.into_iter().collect()
}

fn open(engine: &dyn Engine) -> Runner {
    Runner::open_with(&*MODEL, engine, &RunnerOptions::default()).expect("opens")
}

#[test]
fn the_cpu_engine_gives_the_same_through_the_abi() {
    let expected = talk(&mut open(&cpu())).expect("direct");
    let engine = through_the_abi();
    assert_eq!(engine.name(), "cpu");
    let mut runner = open(&engine);
    assert_eq!(talk(&mut runner).expect("through the ABI"), expected);
    let direct = cpu().load_file(&MODEL.join("text_decoder.safetensors")).expect("loads");
    let component = runner.decoder().component();
    assert_eq!(component.graphs(), direct.graphs());
    assert_eq!((component.weight_bytes(), component.description()), (direct.weight_bytes(), direct.description()));
}

#[test]
fn components_load_from_bytes_and_live_as_long_as_they_are_used() {
    let engine = through_the_abi();
    let bytes = std::fs::read(MODEL.join("text_decoder.safetensors")).expect("the component");
    let source = ComponentSource::bytes("text_decoder", &bytes);
    drop(bytes);
    let component = engine.load(&source).expect("loads");
    drop((engine, source));
    let mut decoder = Decoder::new(component, None).expect("a decoder");
    decoder.prefill(&[1, 2, 3], &mut |_, _| Flow::Continue).expect("prefill");
    let logits = decoder.logits().expect("logits").to_vec();
    let mut direct =
        Decoder::new(cpu().load_file(&MODEL.join("text_decoder.safetensors")).expect("loads"), None).unwrap();
    direct.prefill(&[1, 2, 3], &mut |_, _| Flow::Continue).expect("prefill");
    assert!(logits == direct.logits().expect("logits"));
}

#[test]
fn errors_come_through_with_their_kind_and_words() {
    let engine = through_the_abi();
    let refusal = |source: ComponentSource| engine.load(&source).err().expect("an error");
    let missing = refusal(ComponentSource::file("text_decoder", "/no/such/file"));
    assert!(matches!(missing, Error::NotFound(_)) && missing.to_string().contains("/no/such/file"), "{missing}");
    let garbage = refusal(ComponentSource::bytes("text_decoder", &[7; 300]));
    assert!(matches!(garbage, Error::Format { .. }) && garbage.to_string().contains("300 bytes"), "{garbage}");
    let held = refusal(ComponentSource::held("text_decoder"));
    assert!(matches!(held, Error::NotFound(_)) && held.to_string().contains("holds no component"), "{held}");
    // An id outside of the vocabulary is refused by the engine before anything runs.
    let mut component = engine.load_file(&MODEL.join("text_decoder.safetensors")).expect("loads");
    let signature = component.graphs()[0].clone();
    let mut inputs: Vec<_> =
        signature.inputs.iter().map(|info| etgenai::graph::Tensor::zeros(info.clone()).expect("small")).collect();
    inputs[0].bytes_mut().fill(0x7f);
    let error = support::execute(&mut *component, 0, &inputs, &Default::default()).expect_err("an id out of range");
    assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    inputs[0].bytes_mut().fill(0);
    support::execute(&mut *component, 0, &inputs, &Default::default()).expect("the component is as it was");
}

/// An engine of a host in front of the CPU engine: counts its calls, fails when told to, gives memory of its own.
struct Host {
    inner: etg_engine_functions,
    calls: AtomicUsize,
    /// Number of the execute call that fails.
    fail_at: AtomicUsize,
    open: AtomicUsize,
    memory: AtomicUsize,
    destroyed: AtomicUsize,
}

impl Host {
    fn new() -> &'static Self {
        let count = |value| AtomicUsize::new(value);
        // Outlives whatever is done to it, so that late calls would be seen.
        Box::leak(Box::new(Self {
            inner: ExportedEngine::new(Arc::new(cpu())).into_functions(),
            calls: count(0),
            fail_at: count(usize::MAX),
            open: count(0),
            memory: count(0),
            destroyed: count(0),
        }))
    }

    fn functions(&'static self) -> etg_engine_functions {
        etg_engine_functions {
            user_data: std::ptr::from_ref(self).cast_mut().cast(),
            load: Some(host_load),
            execute: Some(host_execute),
            close: Some(host_close),
            allocate: Some(host_allocate),
            release: Some(host_release),
            destroy: Some(host_destroy),
            ..self.inner
        }
    }

    fn engine(&'static self) -> PluginEngine {
        // SAFETY: functions of this test, valid for ever.
        unsafe { PluginEngine::from_functions(&self.functions()) }.expect("an engine")
    }
}

unsafe fn host(user_data: *mut c_void) -> &'static Host {
    // SAFETY: every function gets the leaked host.
    unsafe { &*user_data.cast::<Host>() }
}

unsafe extern "C" fn host_load(
    user_data: *mut c_void,
    source: *const etg_engine_source,
    component_out: *mut etg_engine_component,
    error: *mut etg_engine_error,
) -> i32 {
    // SAFETY: passed on as it came.
    unsafe {
        let host = host(user_data);
        let code = host.inner.load.expect("load")(host.inner.user_data, source, component_out, error);
        host.open.fetch_add(usize::from(code == OK), SeqCst);
        code
    }
}

unsafe extern "C" fn host_execute(
    user_data: *mut c_void,
    component: *mut c_void,
    call: *const etg_engine_call,
    error: *mut etg_engine_error,
) -> i32 {
    // SAFETY: passed on as it came; the message fits the room.
    unsafe {
        let host = host(user_data);
        if host.calls.fetch_add(1, SeqCst) == host.fail_at.load(SeqCst) {
            let words = b"told to fail\0";
            std::ptr::copy_nonoverlapping(words.as_ptr().cast(), (*error).message, words.len());
            return -77;
        }
        host.inner.execute.expect("execute")(host.inner.user_data, component, call, error)
    }
}

unsafe extern "C" fn host_close(user_data: *mut c_void, component: *mut c_void) {
    // SAFETY: passed on as it came.
    unsafe {
        let host = host(user_data);
        host.open.fetch_sub(1, SeqCst);
        host.inner.close.expect("close")(host.inner.user_data, component);
    }
}

unsafe extern "C" fn host_allocate(
    user_data: *mut c_void,
    _: *mut c_void,
    bytes: usize,
    alignment: usize,
    memory_out: *mut *mut c_void,
    _: *mut etg_engine_error,
) -> i32 {
    // The layout is kept in front of the memory, for the release.
    let layout = std::alloc::Layout::from_size_align(bytes + alignment, alignment).expect("a layout");
    // SAFETY: the layout is not empty.
    unsafe {
        let start = std::alloc::alloc_zeroed(layout);
        start.cast::<[usize; 2]>().write([bytes + alignment, alignment]);
        *memory_out = start.add(alignment).cast();
        host(user_data).memory.fetch_add(1, SeqCst);
    }
    OK
}

unsafe extern "C" fn host_release(user_data: *mut c_void, _: *mut c_void, memory: *mut c_void) {
    // SAFETY: `host_allocate` put the layout there; its alignment is 64.
    unsafe {
        let start = memory.cast::<u8>().sub(64);
        let [bytes, alignment] = start.cast::<[usize; 2]>().read();
        std::alloc::dealloc(start, std::alloc::Layout::from_size_align(bytes, alignment).expect("a layout"));
        host(user_data).memory.fetch_sub(1, SeqCst);
    }
}

unsafe extern "C" fn host_destroy(user_data: *mut c_void) {
    // SAFETY: passed on as it came.
    unsafe {
        let host = host(user_data);
        assert_eq!((host.open.load(SeqCst), host.memory.load(SeqCst)), (0, 0), "destroyed while in use");
        host.destroyed.fetch_add(1, SeqCst);
        host.inner.destroy.expect("destroy")(host.inner.user_data);
    }
}

#[test]
fn a_failure_at_any_call_poisons_until_reset() {
    let expected = talk(&mut open(&cpu())).expect("without failures");
    let host = Host::new();
    let mut runner = open(&host.engine());
    assert_eq!(talk(&mut runner).expect("no failure yet"), expected);
    let calls = host.calls.load(SeqCst);
    assert!(calls > 10, "{calls}");
    for fail_at in 0..calls {
        runner.reset();
        host.calls.store(0, SeqCst);
        host.fail_at.store(fail_at, SeqCst);
        let error = talk(&mut runner).expect_err("a call fails");
        assert!(matches!(error, Error::Engine { .. }) && error.to_string().contains("told to fail"), "{error}");
        let again = talk(&mut runner).expect_err("poisoned");
        assert!(matches!(again, Error::Poisoned(_)) && again.to_string().contains("told to fail"), "{again}");
        assert!(matches!(runner.prefill(&[1]), Err(Error::Poisoned(_))));
        host.fail_at.store(usize::MAX, SeqCst);
        runner.reset();
        assert_eq!(talk(&mut runner).expect("after a reset"), expected, "call {fail_at}");
    }
}

#[test]
fn memory_of_the_engine_is_used_and_given_back() {
    let expected = talk(&mut open(&cpu())).expect("ordinary memory");
    let host = Host::new();
    let options = RunnerOptions { shared_memory: true, ..Default::default() };
    let mut runner = Runner::open_with(&*MODEL, &host.engine(), &options).expect("opens");
    // Ids, mask, positions, logits, new K and V of two graphs, and the caches.
    assert!(host.memory.load(SeqCst) > 12);
    assert_eq!(talk(&mut runner).expect("shared memory"), expected);
    assert_eq!((host.open.load(SeqCst), host.destroyed.load(SeqCst)), (1, 0));
    drop(runner);
    assert_eq!((host.open.load(SeqCst), host.memory.load(SeqCst), host.destroyed.load(SeqCst)), (0, 0, 1));
}

#[test]
fn opening_many_times_leaves_nothing_behind() {
    let host = Host::new();
    let engine = host.engine();
    for _ in 0..50 {
        talk(&mut open(&engine)).expect("works");
        assert_eq!(host.open.load(SeqCst), 0);
    }
    drop(engine);
    assert_eq!(host.destroyed.load(SeqCst), 1);
}

#[test]
fn two_runners_in_two_threads() {
    let expected = talk(&mut open(&cpu())).expect("alone");
    let engine = through_the_abi();
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| talk(&mut open(&engine)).expect("works")));
        for thread in threads {
            assert_eq!(thread.join().expect("no panic"), expected);
        }
    });
}

fn refused(change: impl FnOnce(&mut etg_engine_functions)) -> Error {
    let host = Host::new();
    let mut functions = host.functions();
    change(&mut functions);
    // SAFETY: the struct is as long as it was, and what is shorter is refused.
    let error = unsafe { PluginEngine::from_functions(&functions) }.expect_err("refused");
    assert_eq!(host.destroyed.load(SeqCst), 0, "it was not taken over");
    error
}

#[test]
fn engines_that_break_the_abi_are_refused() {
    let version = refused(|f| f.abi_version = 2001);
    assert!(matches!(version, Error::Unsupported(_)) && version.to_string().contains("version 2.1"), "{version}");
    let short = refused(|f| f.struct_size = 40);
    assert!(short.to_string().contains("struct_size of etg_engine_functions is 40"), "{short}");
    assert!(refused(|f| f.execute = None).to_string().contains("no function execute"));
    assert!(refused(|f| f.load = None).to_string().contains("no function load"));
    assert!(refused(|f| f.close = None).to_string().contains("no function close"));
    assert!(refused(|f| f.release = None).to_string().contains("only one of the functions allocate and release"));
    // SAFETY: NULL is allowed here.
    assert!(unsafe { PluginEngine::from_functions(std::ptr::null()) }.is_err());
}

#[test]
fn an_older_engine_without_the_optional_functions_works() {
    let host = Host::new();
    let mut functions = host.functions();
    functions.struct_size = std::mem::offset_of!(etg_engine_functions, allocate) as u32;
    functions.abi_version = 1000;
    // SAFETY: as long as it says.
    let engine = unsafe { PluginEngine::from_functions(&functions) }.expect("an engine");
    assert!(talk(&mut open(&engine)).is_ok());
}

/// What the error must say, and what a lying engine says about a component.
type NamedLie = (&'static str, fn(&mut Lie));

static LIES: LazyLock<Vec<NamedLie>> = LazyLock::new(|| {
    vec![
        ("unknown type 99", |lie| lie.info.dtype = 99),
        ("17 dimensions", |lie| lie.info.rank = 17),
        ("1 dimensions, or no array", |lie| lie.info.dims = std::ptr::null()),
        ("larger than any memory", |lie| lie.dims[0] = u64::MAX / 2),
        ("a tensor's name is not UTF-8", |lie| lie.info.name = c"\xff".as_ptr()),
        ("a graph's name is not UTF-8", |lie| lie.graph.name = c"\xff".as_ptr()),
        ("a constant's name is not UTF-8", |lie| lie.constant.name = c"\xff".as_ptr()),
        ("unknown kind 9", |lie| lie.value.kind = 9),
        ("a text that is not UTF-8", |lie| {
            lie.value.kind = VALUE_TEXT;
            (lie.value.text, lie.value.text_length) = (c"\xff".as_ptr(), 1);
        }),
    ]
});

struct Lie {
    dims: [u64; 1],
    info: etg_engine_tensor_info,
    graph: etg_engine_graph,
    value: etg_engine_value,
    constant: etg_engine_constant,
    closed: bool,
}

static LIE: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn lying_load(
    _: *mut c_void,
    _: *const etg_engine_source,
    component_out: *mut etg_engine_component,
    _: *mut etg_engine_error,
) -> i32 {
    let name: *const c_char = c"x".as_ptr();
    let lie = Box::leak(Box::new(Lie {
        dims: [1],
        info: etg_engine_tensor_info { name, name_length: 1, dtype: 1, rank: 1, dims: std::ptr::null() },
        graph: etg_engine_graph {
            name,
            name_length: 1,
            inputs: std::ptr::null(),
            input_count: 1,
            outputs: std::ptr::null(),
            output_count: 0,
        },
        value: etg_engine_value { kind: VALUE_INTEGER, integer: 1, real: 0.0, text: name, text_length: 1 },
        constant: etg_engine_constant { name, name_length: 1, values: std::ptr::null(), value_count: 1 },
        closed: false,
    }));
    lie.info.dims = lie.dims.as_ptr();
    lie.graph.inputs = &lie.info;
    lie.constant.values = &lie.value;
    (LIES[LIE.load(SeqCst)].1)(lie);
    // SAFETY: the caller's struct.
    unsafe {
        (*component_out).graphs = &lie.graph;
        (*component_out).graph_count = 1;
        (*component_out).constants = &lie.constant;
        (*component_out).constant_count = 1;
        (*component_out).handle = std::ptr::from_mut(lie).cast();
    }
    OK
}

unsafe extern "C" fn lying_close(_: *mut c_void, component: *mut c_void) {
    // SAFETY: `lying_load` made it.
    unsafe {
        assert!(!(*component.cast::<Lie>()).closed, "closed twice");
        (*component.cast::<Lie>()).closed = true;
        CLOSED.fetch_add(1, SeqCst);
    }
}

static CLOSED: AtomicUsize = AtomicUsize::new(0);

#[test]
fn what_an_engine_claims_is_checked() {
    let functions = etg_engine_functions {
        load: Some(lying_load),
        close: Some(lying_close),
        allocate: None,
        release: None,
        destroy: None,
        ..Host::new().functions()
    };
    // SAFETY: functions of this test.
    let engine = unsafe { PluginEngine::from_functions(&functions) }.expect("an engine");
    for (index, (words, _)) in LIES.iter().enumerate() {
        LIE.store(index, SeqCst);
        let error = engine.load_file(Path::new("any")).err().expect("refused").to_string();
        assert!(error.contains(words), "{error} lacks {words}");
        assert_eq!(CLOSED.load(SeqCst), index + 1, "a refused component is closed");
    }
}

#[test]
fn a_panic_inside_an_exported_engine_is_an_error() {
    struct Panicking;
    impl Engine for Panicking {
        fn name(&self) -> &str {
            "panicking"
        }
        fn load(&self, _: &ComponentSource) -> Result<Box<dyn LoadedComponent>> {
            panic!("on purpose")
        }
    }
    let functions = ExportedEngine::new(Arc::new(Panicking)).into_functions();
    // SAFETY: functions of this library.
    let engine = unsafe { PluginEngine::from_functions(&functions) }.expect("an engine");
    let error = engine.load_file(Path::new("any")).err().expect("an error");
    assert!(matches!(error, Error::Engine { .. }) && error.to_string().contains("on purpose"), "{error}");
}
