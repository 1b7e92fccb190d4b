# Environment in which cargo builds llama.cpp for `cargo bench --features compare-llama-cpp`; to be sourced in bash from
# the top folder, after .ci/fetch-tools.
#
# llama.cpp's own "native" detection is off, because compilers and assemblers of different age disagree on the newest
# instructions; each one that this processor has and llama.cpp has a switch for is turned on by name instead.

export PATH="$PWD/.deps/cmake/cmake/data/bin:$PATH"
export LIBCLANG_PATH="$PWD/.deps/libclang/clang/native"
BINDGEN_EXTRA_CLANG_ARGS="-I$(cc -print-file-name=include)"
export BINDGEN_EXTRA_CLANG_ARGS

export GGML_NATIVE=OFF GGML_LLAMAFILE=ON GGML_CPU_REPACK=ON
if [ "$(uname -m)" = x86_64 ]; then
    for pair in sse4_2:SSE42 avx:AVX f16c:F16C fma:FMA avx2:AVX2 bmi2:BMI2 avx_vnni:AVX_VNNI \
        avx512f:AVX512 avx512vbmi:AVX512_VBMI avx512_vnni:AVX512_VNNI avx512_bf16:AVX512_BF16; do
        if grep -qw "${pair%%:*}" /proc/cpuinfo; then state=ON; else state=OFF; fi
        export "GGML_${pair##*:}=$state"
    done
fi
