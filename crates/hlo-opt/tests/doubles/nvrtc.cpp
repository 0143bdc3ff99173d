// A double of NVRTC: programs become shared objects by the system's C++ compiler and the host executor's shim header.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <regex>
#include <string>
#include <unistd.h>

#ifndef SHIM
#error "SHIM is the path of the host executor's header"
#endif

struct Program { std::string source, code, log; };

extern "C" {
int nvrtcCreateProgram(Program** out, const char* source, const char*, int n_headers, const char**, const char**) {
    *out = new Program{source, "", ""};
    return n_headers == 0 ? 0 : 3;
}
int nvrtcCompileProgram(Program* program, int n, const char** options) {
    bool has_arch = false;
    for (int i = 0; i < n; ++i) has_arch |= !strcmp(options[i], "--gpu-architecture=sm_90");
    if (!has_arch) { program->log = "error: expected sm_90"; return 5; }
    const char* home = getenv("TMPDIR");
    std::string folder = std::string(home ? home : "/tmp") + "/hlo-double-XXXXXX";
    if (mkdtemp(&folder[0]) == nullptr) return 1;
    std::string source = folder + "/program.cpp";
    std::ofstream file(source);
    file << "#include \"" SHIM "\"\n" << program->source
         << "\ntemplate <class... A> constexpr int double_count(void (*)(A...)) { return (int)sizeof...(A); }\n";
    std::regex kernel("__global__\\s+void\\s+(?:__launch_bounds__\\([^)]*\\)\\s*)?(\\w+)\\s*\\(");
    auto begin = std::sregex_iterator(program->source.begin(), program->source.end(), kernel);
    for (auto it = begin; it != std::sregex_iterator(); ++it) {
        std::string name = (*it)[1];
        file << "HLO_HOST_KERNEL(" << name << ", true)\nextern \"C\" int " << name << "_n_arguments;\nint " << name
             << "_n_arguments = double_count(" << name << ");\n";
    }
    file.close();
    std::string object = folder + "/program.so";
    std::string command = "c++ -std=c++17 -O1 -fPIC -shared -w -fno-math-errno -ffp-contract=off -fno-strict-aliasing " + source +
                          " -o " + object + " 2> " + folder + "/log";
    if (system(command.c_str()) != 0) {
        std::ifstream log(folder + "/log");
        program->log.assign(std::istreambuf_iterator<char>(log), {});
        return 6;
    }
    program->code = object;
    return 0;
}
int nvrtcGetCUBINSize(Program* program, size_t* size) { *size = program->code.size() + 1; return 0; }
int nvrtcGetCUBIN(Program* program, char* out) { memcpy(out, program->code.c_str(), program->code.size() + 1); return 0; }
int nvrtcGetProgramLogSize(Program* program, size_t* size) { *size = program->log.size() + 1; return 0; }
int nvrtcGetProgramLog(Program* program, char* out) { memcpy(out, program->log.c_str(), program->log.size() + 1); return 0; }
int nvrtcDestroyProgram(Program** program) { delete *program; *program = nullptr; return 0; }
}
