/* The layers of the simulated driver, lowest first; see shim/layers.h for the rules. Nothing includes this file.
 *
 * LAYER node     node costs clock samples namespaces limits share registry mig    the node that processes share
 * LAYER kernel   simkernel simobjects simexport                                   the kernel driver's calls
 * LAYER driver   mps mpswords                                                    libcuda: MPS
 * LAYER driver   process device context charge memory physical pool vmm contents export   libcuda: state and memory
 * LAYER driver   ipc stream event memops capture launch fill copy legacy host checkpoint carried       libcuda: work
 * LAYER driver   entry faults doors                                               libcuda: lookup
 * LAYER nvml     nvml nvml_gpm nvml_health nvml_limits nvml_load nvml_process nvml_mig nvml_compute  libnvidia-ml
 * LAYER control  mpscontrol                                                      nvidia-cuda-mps-control
 * LAYER simnode  simnode                                                          the program that makes nodes
 */
