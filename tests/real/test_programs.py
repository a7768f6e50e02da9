"""The programs and packages around the library, with real models. Those that are not built or installed are skipped."""
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import real
from test_requests import SMOLLM2, WEATHER, ask

sys.path.append(str(real.ROOT / "hosts/server/tests"))
from support import PROGRAM, Server

PREFIX = real.ROOT / "target/c/stage-bindings"
QUESTION = "What is 2+2?"
CPP = """#include <bn_engine.hpp>
#include <iostream>
int main(int, char **argv) {
    bn::Engine engine(argv[1]);
    std::cout << engine.generate(argv[2]).text;
}
"""
GO = """package main

import (
	"bnengine"
	"context"
	"fmt"
	"os"
)

func main() {
	engine, err := bnengine.NewEngine(bnengine.Options{Path: os.Args[1]})
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	answer, err := engine.Generate(context.Background(), bnengine.Request{Prompt: os.Args[2]})
	if err != nil {
		panic(err)
	}
	fmt.Print(answer.Text)
}
"""
PROMPT = "The capital of France is"


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, **options)


@unittest.skipUnless(os.path.exists(PROGRAM), "bn-server is not built (make hosts)")
class BnServer(unittest.TestCase):
    def test_chat_and_tool_call(self):
        server = Server(model=real.path(SMOLLM2))
        answer = server.ok("/v1/chat/completions", {"messages": ask(QUESTION), "temperature": 0, "max_tokens": 64})
        self.assertIn("4", answer["choices"][0]["message"]["content"])
        answer = server.ok("/v1/chat/completions", {**WEATHER, "temperature": 0, "max_tokens": 100})
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        self.assertEqual(call["function"]["name"], "get_weather")
        self.assertEqual(list(json.loads(call["function"]["arguments"])), ["city"])
        self.assertEqual(server.stop(), 0)

    def test_embedding(self):
        server, golden = Server(model=real.path("all-MiniLM-L6-v2")), real.golden("all-MiniLM-L6-v2")
        answer = server.ok("/v1/embeddings", {"input": golden["sentences"][0]})
        theirs = real.unpacked(golden["vectors"], "f", 384)[0]
        for a, b in zip(answer["data"][0]["embedding"], theirs, strict=True):
            self.assertAlmostEqual(a, b, delta=1e-5)
        self.assertEqual(server.stop(), 0)


class Others(unittest.TestCase):
    def says_paris(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Paris", done.stdout)

    @unittest.skipUnless(os.path.exists(real.program("bn-chat")), "bn-chat is not built (make hosts)")
    def test_bn_chat(self):
        done = run(real.program("bn-chat"), real.path(SMOLLM2), "--temperature", 0, "--max-tokens", 64, input=QUESTION + "\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4", done.stdout)

    @unittest.skipUnless(PREFIX.exists() and shutil.which("c++"), "no installation for it (make staged), or no compiler")
    def test_cpp(self):
        with tempfile.TemporaryDirectory() as folder:
            source, program = Path(folder, "main.cpp"), Path(folder, "main")
            source.write_text(CPP)
            built = run(os.environ.get("CXX") or "c++", "-std=c++17", f"-I{PREFIX}/include", source, "-o", program,
                        f"-L{PREFIX}/lib", "-lbn_engine", f"-Wl,-rpath,{PREFIX}/lib")
            self.assertEqual(built.returncode, 0, built.stderr)
            self.says_paris(run(program, real.path(SMOLLM2), PROMPT))
            # SmolLM2's default KV cache has several GB.
            limits = resource.RLIMIT_AS, (2 << 30, 2 << 30)
            limited = run(program, real.path(SMOLLM2), PROMPT, preexec_fn=lambda: resource.setrlimit(*limits))
            self.says_paris(limited)

    @unittest.skipUnless(PREFIX.exists() and shutil.which("go"), "no installation for it (make staged), or no Go")
    def test_go(self):
        environment = {**os.environ, "PKG_CONFIG_PATH": f"{PREFIX}/lib/pkgconfig", "LD_LIBRARY_PATH": f"{PREFIX}/lib",
                       "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "1"}
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "main.go").write_text(GO)
            Path(folder, "go.mod").write_text("module real\n\ngo 1.19\n\nrequire bnengine v0.0.0\n\n"
                                              f"replace bnengine => {real.ROOT}/bindings/go\n")
            self.says_paris(run("go", "run", ".", real.path(SMOLLM2), PROMPT, cwd=folder, env=environment))

    @unittest.skipUnless(os.path.exists(real.program("bn-convert")), "bn-convert is not installed (make staged)")
    def test_bn_convert_says_that_it_writes_no_encoders(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "out.gguf")
            done = run(real.program("bn-convert"), real.path("all-MiniLM-L6-v2"), out)
            self.assertEqual(done.returncode, 1)
            self.assertIn("bert", done.stderr)
            self.assertFalse(out.exists())
