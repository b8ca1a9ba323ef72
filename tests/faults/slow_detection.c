/* Makes a fault of MKL frequent (docs/engineering-log.md), on any x86-64 Linux with AVX-512.
 *
 *   gcc -shared -fPIC -DPAUSE=100000 -o slow.so slow_detection.c
 *   LD_PRELOAD=./slow.so python PROGRAM
 *
 * MKL treats every CPU as Intel's. With PAUSE, in microseconds, mkl_vml_serv_cpu_detect does what
 * MKL 2024.2's does, with a pause between the two values that it stores: the number of the CPU,
 * and the column of that CPU in the tables of kernels. Other threads come in this pause, not before.
 */
int mkl_serv_intel_cpu_true(void) { return 1; }

#ifdef PAUSE
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

static const int columns[] = {0, 1, 0, 0, 0, 2, 2, 3, 4, 5};
static volatile int cpu = -1, is_detecting;

int mkl_vml_serv_cpu_detect(void) {
    if (cpu == -1 && __sync_lock_test_and_set(&is_detecting, 1))
        while (cpu == -1) usleep(10);
    if (cpu != -1) return cpu;
    void *torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    int number = cpu = ((int (*)(void))dlsym(torch, "mkl_serv_vml_cpu_detect"))();
    usleep(PAUSE);
    return cpu = columns[number];
}
#endif
